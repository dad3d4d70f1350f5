SELECT
    DENSE_RANK() OVER (ORDER BY query, document) - 1 AS item, rank, shown, clicked, randomised
FROM (
    SELECT k.query, s.document, s.rank, k.randomised, COUNT(*) AS shown, COUNT(*) FILTER (s.clicked) AS clicked
    FROM impressions AS s JOIN kept AS k ON k.query_id = s.query_id
    GROUP BY k.query, s.document, s.rank, k.randomised
)
ORDER BY item, rank, randomised
