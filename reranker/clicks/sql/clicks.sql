-- Clicks with the person and the visit, for recognising robots. The time of a purchase is not used: all documents of a
-- basket are bought at the same moment, which says nothing about speed.
SELECT s.person, s.visit, FLOOR(s.time / 86400000) AS day, t.document, t.click_time AS time
FROM document_events AS t
JOIN searches AS s ON s.query_id = t.query_id
WHERE t.clicked AND $judge_robots
