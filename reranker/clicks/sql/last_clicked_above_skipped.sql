-- The last clicked d_i over the unclicked d_j with j < i (spec T14 (2), A28). A user who clicked d_i has most likely
-- examined the documents above it, and examined nothing after the last click. "Last" is the lowest rank even if times
-- are known: times come from client clocks that may be wrong, and a log must give the same pairs whatever these clocks
-- show.
SELECT l.query_id, l.document AS better, u.document AS worse, l.rank
FROM (
    SELECT
        query_id, document, rank,
        ROW_NUMBER() OVER (
            PARTITION BY query_id
            ORDER BY rank DESC
        ) AS place
    FROM clicked_impressions
    WHERE clicked
) AS l
JOIN clicked_impressions AS u ON u.query_id = l.query_id
WHERE l.place = 1 AND NOT u.clicked AND u.rank < l.rank
