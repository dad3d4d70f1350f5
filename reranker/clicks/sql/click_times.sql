-- Time of each impression with a click, undated ones first; from impression rows.
SELECT time
FROM (SELECT query_id, MIN(time) AS time FROM impression_rows GROUP BY query_id HAVING BOOL_OR(clicked))
ORDER BY time NULLS FIRST
