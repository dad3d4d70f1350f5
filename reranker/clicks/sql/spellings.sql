-- Query texts that are written differently in most searches, with the most frequent spelling (of equally frequent ones
-- the smallest). It depends neither on the time range nor on the goal, so that all results of a log have equal texts.
SELECT query, spelling
FROM (
    SELECT query, FIRST_VALUE(query) OVER (PARTITION BY query_key ORDER BY n DESC, query) AS spelling
    FROM (
        SELECT query, n, $query_key AS query_key
        FROM (SELECT query, COUNT(*) AS n FROM searches WHERE query <> '' GROUP BY query) AS of_text
    ) AS keyed
) AS spelled
WHERE spelling <> query
