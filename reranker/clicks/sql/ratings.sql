-- Clicks and examinations of each document. Each person counts once: examined is the probability, in millionths, that
-- the best rank at which the document was shown to them is examined. The recent numbers are in billionths: those of
-- fresh lists count more.
SELECT
    query, document,
    COUNT(*) AS people,
    SUM(CASE WHEN clicked THEN 1 ELSE 0 END) AS clicks,
    SUM(examined) AS examined,
    SUM(recent_click) AS recent_clicks,
    SUM(recent_examined) AS recent_examined
FROM (
    SELECT
        query, document, person, BOOL_OR(clicked) AS clicked, MAX(examined) AS examined,
        MAX(CASE WHEN clicked THEN 1000000 * freshness ELSE 0 END) AS recent_click,
        MAX(examined * freshness) AS recent_examined
    FROM examinations
    GROUP BY query, document, person
) AS of_people
GROUP BY query, document
ORDER BY query, document
