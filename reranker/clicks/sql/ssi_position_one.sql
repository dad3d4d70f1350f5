-- Preferences about the document at rank 1, which every user examines (spec T8, T14 (SSI's rule), A16). If clicked, it is
-- preferred over the unclicked documents of the list, whatever else was clicked. If skipped, the clicked documents are
-- preferred over it. All other clicks are ignored. The source draws the other document of a pair at random from all
-- documents. Here it comes from the same list, so that it was at least retrieved for the query.
SELECT
    f.query_id,
    CASE WHEN f.clicked THEN f.document ELSE o.document END AS better,
    CASE WHEN f.clicked THEN o.document ELSE f.document END AS worse,
    CASE WHEN f.clicked THEN f.rank ELSE o.rank END AS rank
FROM clicked_impressions AS f
JOIN clicked_impressions AS o ON o.query_id = f.query_id
WHERE f.rank = 1 AND o.clicked <> f.clicked
