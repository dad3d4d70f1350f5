-- Queries by whether they find something: people, searches, searches with a known result list, searches with a click.
SELECT k.query, COUNT(DISTINCT k.person), COUNT(*), COUNT(*) FILTER (l.query_id IS NOT NULL),
    COUNT(*) FILTER (c.query_id IS NOT NULL)
FROM kept AS k
LEFT JOIN (SELECT DISTINCT query_id FROM result_lists) AS l ON l.query_id = k.query_id
LEFT JOIN (SELECT DISTINCT query_id FROM actions WHERE clicked) AS c ON c.query_id = k.query_id
WHERE k.account <> '' OR k.session <> ''
GROUP BY k.query HAVING COUNT(DISTINCT k.person) >= $least ORDER BY COUNT(*) DESC, k.query
