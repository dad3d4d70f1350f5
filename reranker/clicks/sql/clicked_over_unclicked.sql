-- d_i clicked, d_j not: d_i > d_j (spec T14 (1), A28). $$above_only keeps the pairs with j < i, as in the click study that
-- the course cites. Without it, documents that nobody examined count as skipped.
SELECT c.query_id, c.document AS better, u.document AS worse, c.rank
FROM clicked_impressions AS c
JOIN clicked_impressions AS u ON u.query_id = c.query_id
WHERE c.clicked AND NOT u.clicked AND (u.rank < c.rank OR NOT $above_only)
