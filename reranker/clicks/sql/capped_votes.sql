-- Votes after the caps. Votes above a cap share the weight of the cap.
SELECT
    v.query, v.better, v.worse,
    CAST(FLOOR(
        CAST(v.units AS DOUBLE)
        * LEAST(1e0, $document_cap / CAST(GREATEST(v.for_better, v.for_worse) AS DOUBLE))
        * COALESCE($person_cap / CAST(o.n AS DOUBLE), 1e0)
        * CASE WHEN v.network = '' THEN 1e0 ELSE LEAST(1e0, $network_cap / CAST(n.people AS DOUBLE)) END
        + 5e-1
    ) AS BIGINT) AS units
FROM (
    SELECT
        query, better, worse, person, network, units,
        COUNT(*) OVER (PARTITION BY person, query, better) AS for_better,
        COUNT(*) OVER (PARTITION BY person, query, worse) AS for_worse
    FROM votes
) AS v
LEFT JOIN person_votes AS o ON o.person = v.person
LEFT JOIN (
    SELECT query, better, network, COUNT(DISTINCT person) AS people
    FROM votes WHERE network <> '' GROUP BY query, better, network
) AS n ON n.query = v.query AND n.better = v.better AND n.network = v.network
