-- Preferences with the query text and the person.
SELECT k.query, p.better, p.worse, k.person, k.visit, k.network, r.units
FROM preferences AS p
JOIN kept AS k ON k.query_id = p.query_id
JOIN rank_units AS r ON r.rank = LEAST(p.rank, $last_rank)
