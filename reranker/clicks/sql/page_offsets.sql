-- Later pages: positions in the response count from 1 again, but ordinals in the events continue. The difference is used
-- if all events of the page agree on it and it is at least the length of the page. A smaller one is a counting mistake.
SELECT query_id, MIN(event_rank - rank) AS ranks_before
FROM result_lists
GROUP BY query_id
HAVING MIN(event_rank - rank) = MAX(event_rank - rank) AND MIN(event_rank - rank) >= COUNT(*)
