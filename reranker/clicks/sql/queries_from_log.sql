-- One row per query id, from the logged queries. A query id may have several texts, one for each key typed. The longest
-- one is used (of equally long ones the alphabetically last), which depends neither on the order of lines nor on a clock.
SELECT
    query_id,
    SUBSTR(MAX(LPAD(CAST(LENGTH(query) AS STRING), 9, '0') || query), 10) AS query,
    MAX(session) AS session,
    MAX(account) AS account,
    MAX(network) AS network,
    MIN(time) AS time,
    MAX(application) AS application,
    MAX(agent) AS agent,
    BOOL_OR(randomised) AS randomised
FROM queries
WHERE query_id <> ''
GROUP BY query_id
