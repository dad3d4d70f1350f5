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
