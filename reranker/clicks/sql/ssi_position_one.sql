SELECT
    f.query_id,
    CASE WHEN f.clicked THEN f.document ELSE o.document END AS better,
    CASE WHEN f.clicked THEN o.document ELSE f.document END AS worse,
    CASE WHEN f.clicked THEN f.rank ELSE o.rank END AS rank
FROM clicked_impressions AS f
JOIN clicked_impressions AS o ON o.query_id = f.query_id
WHERE f.rank = 1 AND o.clicked <> f.clicked
