SELECT k.query, COUNT(DISTINCT k.person), COUNT(*), COUNT(*) FILTER (NOT l.clicked), SUM(l.lost)
FROM kept AS k JOIN (
    SELECT s.query_id, BOOL_OR(s.clicked) AS clicked,
        COALESCE(SUM(1.0 / e.rank - 1.0 / s.rank) FILTER (s.clicked), 0.0) AS lost
    FROM impressions AS s
    LEFT JOIN engine_ranks AS e ON e.query_id = s.query_id AND e.document = s.document
    GROUP BY s.query_id
) AS l ON l.query_id = k.query_id
WHERE k.account <> '' OR k.session <> ''
GROUP BY k.query HAVING COUNT(DISTINCT k.person) >= $least ORDER BY k.query
