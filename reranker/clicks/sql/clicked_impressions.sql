-- The lists with a click that counts: only they prefer anything.
SELECT l.*
FROM counted_impressions AS l
JOIN (SELECT query_id FROM counted_impressions WHERE clicked GROUP BY query_id) AS c ON c.query_id = l.query_id
