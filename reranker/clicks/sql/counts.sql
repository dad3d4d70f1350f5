SELECT status AS name, COUNT(*) AS n FROM statuses GROUP BY status
UNION ALL SELECT 'votes', COUNT(*) FROM votes
UNION ALL SELECT 'stated', COUNT(*) FROM summed_votes
UNION ALL SELECT 'pairs', COUNT(*) FROM summed_votes WHERE people >= $min_users AND units > 0
