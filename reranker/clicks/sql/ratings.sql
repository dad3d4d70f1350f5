-- Clicks and examinations of each document. Each person counts once: examined is the probability, in millionths, that
-- the best rank at which the document was shown to them is examined.
SELECT
    query, document,
    COUNT(*) AS people,
    SUM(CASE WHEN clicked THEN 1 ELSE 0 END) AS clicks,
    SUM(examined) AS examined
FROM (
    SELECT query, document, person, BOOL_OR(clicked) AS clicked, MAX(examined) AS examined
    FROM examinations
    GROUP BY query, document, person
) AS of_people
GROUP BY query, document
ORDER BY query, document
