-- What is said of the document at rank 1, which everybody sees (spec T8, T14 (SSI's rule), A16). Clicked, it stands over
-- the unclicked documents of the list, whatever else was clicked; skipped, under those that were clicked; all other
-- clicks are discarded. The source draws the other document of a pair at random from all; here it is one of the same
-- list, which was at least retrieved for the query.
SELECT
    f.query_id,
    CASE WHEN f.clicked THEN f.document ELSE o.document END AS better,
    CASE WHEN f.clicked THEN o.document ELSE f.document END AS worse,
    CASE WHEN f.clicked THEN f.rank ELSE o.rank END AS rank
FROM clicked_impressions AS f
JOIN clicked_impressions AS o ON o.query_id = f.query_id
WHERE f.rank = 1 AND o.clicked <> f.clicked
