-- d_i clicked, d_{i+1} not: d_i > d_{i+1} (spec T14 (4)).
SELECT c.query_id, c.document AS better, u.document AS worse, c.rank
FROM clicked_impressions AS c
JOIN clicked_impressions AS u ON u.query_id = c.query_id AND u.rank = c.rank + 1
WHERE c.clicked AND NOT u.clicked
