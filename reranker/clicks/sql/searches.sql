-- Searches with their person and visit. A person is the user, else the session, else this one query. A visit is the
-- logged session, or the queries of a user until a pause of $session_gap_ms if there is none (undated ones come first).
SELECT
    query_id, query, session, account, network, time, application, agent, randomised,
    CASE WHEN account <> '' THEN 'u' || account WHEN session <> '' THEN 's' || session ELSE 'q' || query_id END
        AS person,
    CASE WHEN session <> '' THEN 's' || session ELSE 'q' || query_id END AS visit
FROM joined_queries
WHERE session <> '' OR account = ''
UNION ALL
SELECT
    query_id, query, session, account, network, time, application, agent, randomised,
    'u' || account AS person,
    'u' || account || '/' || CAST(SUM(begins) OVER (
        PARTITION BY account ORDER BY time NULLS FIRST, query_id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS STRING) AS visit
FROM (
    SELECT
        *,
        CASE WHEN time - LAG(time) OVER (PARTITION BY account ORDER BY time NULLS FIRST, query_id) > $session_gap_ms
            THEN 1 ELSE 0 END AS begins
    FROM joined_queries
    WHERE session = '' AND account <> ''
) AS of_users
