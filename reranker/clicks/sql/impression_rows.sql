SELECT
    k.query_id, k.query, k.session, k.account, k.network, k.time, k.application, k.randomised,
    s.document, s.rank, s.clicked, s.carted, s.purchased, s.time AS document_time, s.dwell
FROM kept AS k
JOIN impressions AS s ON s.query_id = k.query_id
ORDER BY k.time NULLS FIRST, k.query_id, s.rank
