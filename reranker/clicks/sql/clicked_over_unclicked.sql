SELECT c.query_id, c.document AS better, u.document AS worse, c.rank
FROM lists AS c
JOIN lists AS u ON u.query_id = c.query_id
WHERE c.clicked AND NOT u.clicked AND (u.rank < c.rank OR NOT $above_only)
