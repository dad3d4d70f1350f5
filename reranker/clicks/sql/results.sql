-- Documents that the engine returned. A document that was returned twice counts at its first position.
SELECT h.query_id, h.document, MIN(h.position) AS rank
FROM hits AS h
JOIN kept AS k ON k.query_id = h.query_id
WHERE h.document <> '' AND h.position >= 1
GROUP BY h.query_id, h.document
