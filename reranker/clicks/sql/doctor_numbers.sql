-- Numbers for the doctor. Each query returns one row whose column names are the names of the numbers.
SELECT COUNT(*) AS query_rows FROM queries;
SELECT COUNT(*) AS hits, COUNT(*) FILTER (regexp_full_match(document, '[0-9]{1,10}')) AS hits_like_numbers
FROM hits;
SELECT COUNT(*) AS event_rows,
    COUNT(*) FILTER (query_id = '' AND action IN ('click', 'add_to_cart', 'purchase')) AS events_without_query_id
FROM events;
SELECT COUNT(*) AS searches, COUNT(*) FILTER (account = '' AND session = '') AS searches_anonymous,
    COUNT(*) FILTER (time IS NULL) AS searches_undated, COUNT(*) FILTER (randomised) AS searches_randomised,
    COUNT(DISTINCT person) AS people, MIN(time) AS first_time, MAX(time) AS last_time
FROM searches;
SELECT COUNT(*) AS clicks,
    COUNT(*) FILTER (regexp_full_match(t.document, '[0-9]{1,10}')) AS clicks_like_numbers,
    COUNT(*) FILTER (s.query_id IS NULL) AS clicks_without_query
FROM document_events AS t LEFT JOIN queries_from_log AS s ON s.query_id = t.query_id WHERE t.clicked;
SELECT COUNT(*) AS searches_kept, COUNT(*) FILTER (l.query_id IS NULL) AS searches_without_list,
    COUNT(DISTINCT k.query) AS distinct_queries
FROM kept AS k LEFT JOIN (SELECT DISTINCT query_id FROM result_lists) AS l ON l.query_id = k.query_id;
SELECT COUNT(DISTINCT k.query) AS distinct_queries_clicked
FROM kept AS k JOIN impressions AS s ON s.query_id = k.query_id WHERE s.clicked;
SELECT COUNT(*) AS clicks_kept, COUNT(*) FILTER (l.document IS NOT NULL) AS clicks_on_lists,
    COUNT(*) FILTER (l.document IS NULL AND w.query_id IS NOT NULL) AS clicks_off_lists
FROM actions AS a
LEFT JOIN result_lists AS l ON l.query_id = a.query_id AND l.document = a.document
LEFT JOIN (SELECT DISTINCT query_id FROM result_lists) AS w ON w.query_id = a.query_id
WHERE a.clicked;
SELECT COALESCE(MAX(n), 0) AS clicks_of_busiest FROM (
    SELECT COUNT(*) AS n FROM actions AS a JOIN kept AS k ON k.query_id = a.query_id
    WHERE a.clicked GROUP BY k.person
);
SELECT MIN(n) AS randomised_clicks_of_rarest_rank FROM (
    SELECT COUNT(*) FILTER (s.clicked) AS n FROM kept AS k JOIN impressions AS s ON s.query_id = k.query_id
    WHERE k.randomised GROUP BY s.rank HAVING COUNT(*) >= $least
);
SELECT COUNT(*) AS positions_stated,
    COUNT(*) FILTER (l.event_rank = l.rank + COALESCE(p.ranks_before, 0)) AS positions_agreeing
FROM result_lists AS l
JOIN (SELECT DISTINCT query_id FROM results) AS f ON f.query_id = l.query_id
LEFT JOIN page_offsets AS p ON p.query_id = l.query_id
WHERE l.event_rank IS NOT NULL;
SELECT COUNT(*) FILTER (base = 0) AS applications_from_0,
    COUNT(*) FILTER (base = 1 AND zeros > 0) AS applications_mixed
FROM first_ordinals JOIN (
    SELECT s.application, COUNT(*) FILTER (t.ordinal = 0) AS zeros
    FROM document_events AS t JOIN searches AS s ON s.query_id = t.query_id GROUP BY s.application
) AS z ON z.application = first_ordinals.application
