-- Status of each query: kept, or the first reason for excluding it. Undated queries count as the oldest.
SELECT
    s.query_id,
    CASE
        WHEN s.query = '' THEN 'no_query_text'
        WHEN r.code = 1 THEN 'robot_agent'
        WHEN r.code = 2 THEN 'robot_session_clicks'
        WHEN r.code = 3 THEN 'robot_speed'
        WHEN r.code = 4 THEN 'robot_day_clicks'
        WHEN r.code = 5 THEN 'robot_one_document'
        WHEN COALESCE(s.time, $oldest) < $since OR COALESCE(s.time, $oldest) >= $until THEN 'out_of_range'
        WHEN c.query_id IS NULL AND $clicked_only THEN 'no_click'
        ELSE 'kept'
    END AS status
FROM searches AS s
LEFT JOIN robots AS r ON r.query_id = s.query_id
LEFT JOIN (SELECT query_id FROM document_events WHERE clicked GROUP BY query_id) AS c ON c.query_id = s.query_id
