-- One row per query id, from the events: fills in missing values of query rows, and replaces missing query rows.
SELECT
    query_id,
    SUBSTR(MAX(LPAD(CAST(LENGTH(query) AS STRING), 9, '0') || query), 10) AS query,
    MAX(session) AS session,
    MAX(account) AS account,
    MAX(network) AS network,
    MIN(time) AS time,
    MAX(application) AS application,
    MAX(agent) AS agent
FROM events
WHERE query_id <> ''
GROUP BY query_id
