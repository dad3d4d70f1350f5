-- Result lists. Documents that share a rank (two responses logged with the same query id) are dropped, because the log
-- does not tell which of them was shown.
SELECT
    l.query_id,
    l.rank + COALESCE(MIN(p.ranks_before), 0) AS rank,
    MIN(l.document) AS document,
    BOOL_OR(l.clicked) AS clicked,
    BOOL_OR(l.carted) AS carted,
    BOOL_OR(l.purchased) AS purchased,
    MIN(l.time) AS time,
    MIN(l.dwell) AS dwell
FROM result_lists AS l
LEFT JOIN page_offsets AS p ON p.query_id = l.query_id
GROUP BY l.query_id, l.rank
HAVING COUNT(*) = 1
