-- Later pages: positions count from 1 again while the events count on. Believed where all events of the page agree
-- on a distance of at least the page's length; a smaller one is a slip in counting.
SELECT query_id, MIN(event_rank - rank) AS ranks_before
FROM result_lists
GROUP BY query_id
HAVING MIN(event_rank - rank) = MAX(event_rank - rank) AND MIN(event_rank - rank) >= COUNT(*)
