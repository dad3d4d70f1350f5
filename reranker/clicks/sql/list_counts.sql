SELECT 'listed' AS name, COUNT(*) AS n FROM (SELECT query_id FROM impressions GROUP BY query_id) AS a
UNION ALL SELECT 'impressions', COUNT(*) FROM (SELECT query_id FROM clicked_impressions GROUP BY query_id) AS a
UNION ALL SELECT 'preferences', COUNT(*) FROM preferences
