SELECT status AS name, COUNT(*) AS n FROM judged GROUP BY status
UNION ALL SELECT 'votes', COUNT(*) FROM votes
UNION ALL SELECT 'said', COUNT(*) FROM summed
UNION ALL SELECT 'pairs', COUNT(*) FROM summed WHERE people >= $min_users AND units > 0
