-- How often a document was clicked of the times it was examined: each person once, clicks over the probability that
-- the best rank it was shown to them at is examined, in millionths.
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
