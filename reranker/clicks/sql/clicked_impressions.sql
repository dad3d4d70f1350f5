-- Result lists with at least one click that counts. Only these state a preference.
SELECT l.*
FROM counted_impressions AS l
JOIN (SELECT query_id FROM counted_impressions WHERE clicked GROUP BY query_id) AS c ON c.query_id = l.query_id
