-- The queries of impression rows, as the step "kept" has them.
SELECT
    query_id, MIN(query) AS query,
    MIN(CASE WHEN account <> '' THEN 'u' || account WHEN session <> '' THEN 's' || session ELSE 'q' || query_id END)
        AS person
FROM impression_rows
GROUP BY query_id
