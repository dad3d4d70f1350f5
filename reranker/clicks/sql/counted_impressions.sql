-- Result lists without the documents whose click was too short to count.
SELECT query_id, rank, document, clicked, carted, purchased, time
FROM impressions
WHERE NOT (clicked AND NOT carted AND NOT purchased AND COALESCE(dwell, $min_dwell_s) < $min_dwell_s)
