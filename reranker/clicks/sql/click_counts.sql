-- How often each document of each query was shown at each rank, and clicked; from impression rows.
SELECT
    DENSE_RANK() OVER (ORDER BY query, document) - 1 AS item, rank, shown, clicked, randomised
FROM (
    SELECT query, document, rank, randomised, COUNT(*) AS shown, COUNT(*) FILTER (clicked) AS clicked
    FROM impression_rows
    WHERE time IS NULL OR time < $until
    GROUP BY query, document, rank, randomised
)
ORDER BY item, rank, randomised
