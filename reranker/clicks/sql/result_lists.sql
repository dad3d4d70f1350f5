-- Shown documents: those that the engine returned. If no response was logged, the documents with an impression or click
-- that states a rank, provided that there is any impression (clicks do not tell which documents were skipped).
SELECT
    f.query_id, f.document, f.rank, a.event_rank,
    COALESCE(a.clicked, FALSE) AS clicked, COALESCE(a.carted, FALSE) AS carted,
    COALESCE(a.purchased, FALSE) AS purchased, a.time, a.dwell
FROM results AS f
LEFT JOIN actions AS a ON a.query_id = f.query_id AND a.document = f.document
UNION ALL
SELECT
    a.query_id, a.document, a.event_rank AS rank, a.event_rank,
    a.clicked, a.carted, a.purchased, a.time, a.dwell
FROM actions AS a
JOIN (SELECT query_id FROM actions WHERE seen GROUP BY query_id) AS s ON s.query_id = a.query_id
LEFT JOIN (SELECT query_id FROM results GROUP BY query_id) AS f ON f.query_id = a.query_id
WHERE f.query_id IS NULL AND a.event_rank >= 1
