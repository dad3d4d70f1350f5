-- Bought documents over carted ones, and both over documents that were only clicked. Both documents were examined, so
-- position bias matters little. The grades follow the engagement of OpenSearch UBI's actions (peers.md section 5.3).
SELECT b.query_id, b.document AS better, w.document AS worse, b.rank
FROM clicked_impressions AS b
JOIN clicked_impressions AS w ON w.query_id = b.query_id
WHERE w.clicked
    AND CASE WHEN b.purchased THEN 3 WHEN b.carted THEN 2 ELSE 1 END
        > CASE WHEN w.purchased THEN 3 WHEN w.carted THEN 2 ELSE 1 END
