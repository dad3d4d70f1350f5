-- The shown documents of impression rows before a time, as the step "impressions" has them.
SELECT query_id, rank, document, clicked, carted, purchased, document_time AS time, dwell
FROM impression_rows
WHERE time IS NULL OR time < $until
