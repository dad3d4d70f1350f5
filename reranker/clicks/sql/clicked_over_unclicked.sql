SELECT c.query_id, c.document AS better, u.document AS worse, c.rank
FROM clicked_impressions AS c
JOIN clicked_impressions AS u ON u.query_id = c.query_id
WHERE c.clicked AND NOT u.clicked AND (u.rank < c.rank OR NOT $above_only)
