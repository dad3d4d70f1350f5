SELECT status AS name, COUNT(*) AS n FROM judged GROUP BY status
UNION ALL SELECT 'listed', COUNT(*) FROM (SELECT query_id FROM shown GROUP BY query_id) AS a
UNION ALL SELECT 'impressions', COUNT(*) FROM (SELECT query_id FROM lists GROUP BY query_id) AS a
UNION ALL SELECT 'preferences', COUNT(*) FROM preferences
UNION ALL SELECT 'votes', COUNT(*) FROM votes
UNION ALL SELECT 'said', COUNT(*) FROM summed
UNION ALL SELECT 'pairs', COUNT(*) FROM summed WHERE people >= $min_users AND units > 0
