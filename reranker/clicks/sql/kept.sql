SELECT s.*
FROM searches AS s
JOIN statuses AS j ON j.query_id = s.query_id
WHERE j.status = 'kept'
