-- The last clicked d_i over the unclicked d_j with j < i (spec T14 (2), A28): whoever clicked d_i has most likely looked
-- at what stands above it, and after the last click looked no further. With $$last_by_time, "last" is the latest click,
-- cart or purchase (the lower one of two at the same time; one without a time is the earliest), as A28 has it. The
-- default is the lowest even where times are known: they come from clocks that nobody sets, and a log must give the same
-- pairs whatever these show.
SELECT l.query_id, l.document AS better, u.document AS worse, l.rank
FROM (
    SELECT
        query_id, document, rank,
        ROW_NUMBER() OVER (
            PARTITION BY query_id
            ORDER BY CASE WHEN $last_by_time THEN COALESCE(time, -1) ELSE 0 END DESC, rank DESC
        ) AS place
    FROM clicked_impressions
    WHERE clicked
) AS l
JOIN clicked_impressions AS u ON u.query_id = l.query_id
WHERE l.place = 1 AND NOT u.clicked AND u.rank < l.rank
