-- The queries of impression rows before a time, as the step "kept" has them.
SELECT
    query_id, MIN(query) AS query, MIN(time) AS time,
    MIN(CASE WHEN account <> '' THEN 'u' || account WHEN session <> '' THEN 's' || session ELSE 'q' || query_id END)
        AS person
FROM impression_rows
WHERE time IS NULL OR time < $until
GROUP BY query_id
