-- One row a query id, from the logged queries. A query id may carry several texts, one a key typed: the longest
-- counts (the alphabetically last of equally long ones), which needs neither the order of the lines nor a clock.
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
