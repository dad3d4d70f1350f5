-- First ordinal of each application: 0 if at least one in fifty of its ordinals is 0, else 1.
SELECT
    s.application,
    CASE WHEN 50 * SUM(CASE WHEN t.ordinal = 0 THEN 1 ELSE 0 END) >= COUNT(*) THEN 0 ELSE 1 END AS base
FROM document_events AS t
JOIN searches AS s ON s.query_id = t.query_id
WHERE t.ordinal IS NOT NULL
GROUP BY s.application
