-- The documents that the engine returned; a document returned twice counts where it stood first.
SELECT h.query_id, h.document, MIN(h.position) AS rank
FROM hits AS h
JOIN kept AS k ON k.query_id = h.query_id
WHERE h.document <> '' AND h.position >= 1
GROUP BY h.query_id, h.document
