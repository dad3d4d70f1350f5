-- Votes after the caps. Votes above a cap share the weight of the cap. Counts are joined only where they are above a cap,
-- which is rare: most votes need no more than a look-up in a small table.
SELECT
    v.query, v.better, v.worse,
    CAST(FLOOR(
        CAST(v.units AS DOUBLE)
        * LEAST(1e0, $document_cap / CAST(GREATEST(COALESCE(b.n, 1), COALESCE(w.n, 1)) AS DOUBLE))
        * COALESCE($person_cap / CAST(o.n AS DOUBLE), 1e0)
        * COALESCE($network_cap / CAST(n.people AS DOUBLE), 1e0)
        + 5e-1
    ) AS BIGINT) AS units
FROM votes AS v
LEFT JOIN (
    SELECT person, query, better, COUNT(*) AS n
    FROM votes GROUP BY person, query, better HAVING CAST(COUNT(*) AS DOUBLE) > $document_cap
) AS b ON b.person = v.person AND b.query = v.query AND b.better = v.better
LEFT JOIN (
    SELECT person, query, worse, COUNT(*) AS n
    FROM votes GROUP BY person, query, worse HAVING CAST(COUNT(*) AS DOUBLE) > $document_cap
) AS w ON w.person = v.person AND w.query = v.query AND w.worse = v.worse
LEFT JOIN person_votes AS o ON o.person = v.person
LEFT JOIN (
    SELECT query, better, network, COUNT(DISTINCT person) AS people
    FROM votes
    WHERE network <> ''
    GROUP BY query, better, network
    HAVING CAST(COUNT(DISTINCT person) AS DOUBLE) > $network_cap
) AS n ON n.query = v.query AND n.better = v.better AND n.network = v.network
