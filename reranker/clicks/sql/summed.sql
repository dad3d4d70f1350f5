SELECT query, better, worse, COUNT(*) AS people, SUM(units) AS units
FROM capped
GROUP BY query, better, worse
