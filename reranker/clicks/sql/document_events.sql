-- One row per document of a query: which actions occurred, regardless of their order and of duplicates.
SELECT
    query_id,
    document,
    BOOL_OR(action = 'impression') AS seen,
    BOOL_OR(action <> 'impression') AS clicked,
    BOOL_OR(action = 'add_to_cart') AS carted,
    BOOL_OR(action = 'purchase') AS purchased,
    MIN(CASE WHEN action IN ('impression', 'click') AND ordinal >= 0 THEN ordinal END) AS ordinal,
    MAX(CASE WHEN action <> 'impression' THEN time END) AS time,
    MAX(CASE WHEN action = 'click' THEN time END) AS click_time,
    MAX(CASE WHEN action = 'click' THEN dwell END) AS dwell
FROM events
WHERE query_id <> '' AND document <> '' AND action IN ('impression', 'click', 'add_to_cart', 'purchase')
GROUP BY query_id, document
