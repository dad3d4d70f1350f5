-- Searches that are used, with the most frequent spelling of their query.
SELECT
    s.query_id, COALESCE(p.spelling, s.query) AS query, s.session, s.account, s.network, s.time, s.application, s.agent,
    s.randomised, s.person, s.visit
FROM searches AS s
JOIN statuses AS j ON j.query_id = s.query_id
LEFT JOIN spellings AS p ON p.query = s.query
WHERE j.status = 'kept'
