-- Shown documents with the query text, the person, and the probability that the rank is examined.
SELECT k.query, s.document, k.person, s.clicked, e.units AS examined
FROM counted_impressions AS s
JOIN kept AS k ON k.query_id = s.query_id
JOIN rank_chances AS e ON e.rank = LEAST(s.rank, $last_rank)
