-- One row per person and pair: the mean weight of its impressions, times the number of sessions, at most $user_cap.
-- Weights are integers in millionths, so that sums do not depend on the order of addition.
SELECT
    query, better, worse, person,
    MAX(network) AS network,
    CAST(FLOOR(
        CAST(SUM(units) AS DOUBLE) * LEAST(CAST(SUM(said) AS DOUBLE), $user_cap) / CAST(SUM(n) AS DOUBLE)
    ) AS BIGINT) AS units
FROM (
    SELECT
        query, better, worse, person, visit,
        MAX(network) AS network,
        SUM(units) AS units,
        COUNT(*) AS n,
        CASE WHEN $once_a_session THEN 1 ELSE COUNT(*) END AS said
    FROM stated_preferences
    GROUP BY query, better, worse, person, visit
) AS of_visits
GROUP BY query, better, worse, person
