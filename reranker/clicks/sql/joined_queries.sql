-- Queries joined from both sources. A value of the query's own row has priority; the events fill in missing values.
SELECT
    COALESCE(s.query_id, t.query_id) AS query_id,
    CASE WHEN s.query <> '' THEN s.query ELSE COALESCE(t.query, '') END AS query,
    CASE WHEN s.session <> '' THEN s.session ELSE COALESCE(t.session, '') END AS session,
    CASE WHEN s.account <> '' THEN s.account ELSE COALESCE(t.account, '') END AS account,
    CASE WHEN s.network <> '' THEN s.network ELSE COALESCE(t.network, '') END AS network,
    COALESCE(s.time, t.time) AS time,
    CASE WHEN s.application <> '' THEN s.application ELSE COALESCE(t.application, '') END AS application,
    CASE WHEN s.agent <> '' THEN s.agent ELSE COALESCE(t.agent, '') END AS agent,
    COALESCE(s.randomised, FALSE) AS randomised
FROM queries_from_log AS s
FULL OUTER JOIN queries_from_events AS t ON t.query_id = s.query_id
