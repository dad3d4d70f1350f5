-- One row a person and pair: the mean weight of its impressions, as often as there were sessions, at most $user_cap.
-- Weights are in millionths, as whole numbers, so that sums do not depend on the order of adding.
SELECT
    query, better, worse, person,
    MAX(network) AS network,
    CAST(FLOOR(
        CAST(SUM(units) AS DOUBLE) * LEAST(CAST(SUM(said) AS DOUBLE), $user_cap) / CAST(SUM(n) AS DOUBLE)
    ) AS BIGINT) AS units
FROM (
    SELECT
        k.query, p.better, p.worse, k.person, k.visit,
        MAX(k.network) AS network,
        SUM(r.units) AS units,
        COUNT(*) AS n,
        CASE WHEN $once_a_session THEN 1 ELSE COUNT(*) END AS said
    FROM preferences AS p
    JOIN kept AS k ON k.query_id = p.query_id
    JOIN rank_units AS r ON r.rank = LEAST(p.rank, $last_rank)
    GROUP BY k.query, p.better, p.worse, k.person, k.visit
) AS of_visits
GROUP BY query, better, worse, person
