-- Shown documents with the query text, the person, the probability that the rank is examined, and how fresh the list
-- is, in thousandths: 1000 at the end of the time range, half as much a half-life before. Undated lists are fresh, and
-- so are all lists if the range has no end.
SELECT
    k.query, s.document, k.person, s.clicked, e.units AS examined,
    CASE
        WHEN k.time < $fresh_at THEN CAST(ROUND(1000.0 * POWER(0.5, ($fresh_at - k.time) / $half_life_ms)) AS BIGINT)
        ELSE 1000
    END AS freshness
FROM counted_impressions AS s
JOIN kept AS k ON k.query_id = s.query_id
JOIN rank_chances AS e ON e.rank = LEAST(s.rank, $last_rank)
