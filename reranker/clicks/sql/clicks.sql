-- The clicks with who made them: what robots are told by.
SELECT s.person, s.visit, FLOOR(s.time / 86400000) AS day, t.document, t.time
FROM document_events AS t
JOIN searches AS s ON s.query_id = t.query_id
WHERE t.clicked AND $judge_robots
