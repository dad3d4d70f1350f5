-- People with more votes, over all queries, than count in full.
SELECT person, COUNT(*) AS n FROM votes GROUP BY person HAVING CAST(COUNT(*) AS DOUBLE) > $person_cap
