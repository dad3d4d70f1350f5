-- The clicks with who made them: what robots are told by. What lies in one basket is bought at one moment: the times of
-- purchases tell nothing of speed.
SELECT s.person, s.visit, FLOOR(s.time / 86400000) AS day, t.document, t.click_time AS time
FROM document_events AS t
JOIN searches AS s ON s.query_id = t.query_id
WHERE t.clicked AND $judge_robots
