-- d_i clicked, d_j not: d_i > d_j (spec T14 (1), A28). Documents that nobody examined count as skipped.
SELECT c.query_id, c.document AS better, u.document AS worse, c.rank
FROM clicked_impressions AS c
JOIN clicked_impressions AS u ON u.query_id = c.query_id
WHERE c.clicked AND NOT u.clicked
