SELECT query, better, worse, CAST(units AS DOUBLE) / 1e6 AS weight
FROM summed_votes
WHERE people >= $min_users AND units > 0
ORDER BY query, better, worse
