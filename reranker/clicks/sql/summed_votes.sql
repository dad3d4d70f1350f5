SELECT query, better, worse, COUNT(*) AS people, SUM(units) AS units
FROM capped_votes
GROUP BY query, better, worse
