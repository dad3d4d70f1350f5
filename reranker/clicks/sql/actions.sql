-- Actions in the queries that were kept, with the rank as the event states it (from 1).
SELECT
    t.query_id, t.document, t.seen, t.clicked, t.carted, t.purchased, t.time, t.dwell,
    t.ordinal + 1 - COALESCE(b.base, 1) AS event_rank
FROM document_events AS t
JOIN kept AS k ON k.query_id = t.query_id
LEFT JOIN first_ordinals AS b ON b.application = k.application
