-- How often a document was clicked of the times it was examined: each person once, clicks over the probability that
-- the best rank it was shown to them at is examined, in millionths.
SELECT
    query, document,
    COUNT(*) AS people,
    SUM(CASE WHEN clicked THEN 1 ELSE 0 END) AS clicks,
    SUM(examined) AS examined
FROM (
    SELECT k.query, s.document, k.person, BOOL_OR(s.clicked) AS clicked, MAX(e.units) AS examined
    FROM counted_impressions AS s
    JOIN kept AS k ON k.query_id = s.query_id
    JOIN rank_chances AS e ON e.rank = LEAST(s.rank, $last_rank)
    GROUP BY k.query, s.document, k.person
) AS of_people
GROUP BY query, document
ORDER BY query, document
