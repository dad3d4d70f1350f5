SELECT 'listed' AS name, COUNT(*) AS n FROM (SELECT query_id FROM shown GROUP BY query_id) AS a
UNION ALL SELECT 'impressions', COUNT(*) FROM (SELECT query_id FROM lists GROUP BY query_id) AS a
UNION ALL SELECT 'preferences', COUNT(*) FROM preferences
