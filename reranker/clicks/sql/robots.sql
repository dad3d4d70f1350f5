-- Queries of robots, with the first rule that applies (see RobotRules): 1 agent, 2 clicks per session and day, 3 speed,
-- 4 clicks per day, 5 repeated clicks on one document. The sum of squares gives the order-2 entropy in integers.
SELECT query_id, MIN(code) AS code
FROM (
    SELECT s.query_id, 1 AS code
    FROM searches AS s
    JOIN (SELECT person FROM searches WHERE agent <> '' AND $judge_robots GROUP BY person) AS a ON a.person = s.person
    UNION ALL
    SELECT s.query_id, CASE WHEN v.n > $session_clicks THEN 2 ELSE 3 END AS code
    FROM searches AS s
    JOIN (
        SELECT visit, MAX(n) AS n, SUM(timed) AS timed, MAX(latest) - MIN(earliest) AS span
        FROM (
            SELECT visit, COUNT(*) AS n, COUNT(time) AS timed, MIN(time) AS earliest, MAX(time) AS latest
            FROM clicks GROUP BY visit, day
        ) AS days
        GROUP BY visit
    ) AS v ON v.visit = s.visit
    WHERE v.n > $session_clicks OR (v.timed >= $speed_clicks AND v.span < $min_gap_ms * (v.timed - 1))
    UNION ALL
    SELECT s.query_id, 4 AS code
    FROM searches AS s
    JOIN (
        SELECT person FROM (SELECT person, day, COUNT(*) AS n FROM clicks GROUP BY person, day) AS days
        WHERE n > $day_clicks GROUP BY person
    ) AS d ON d.person = s.person
    UNION ALL
    SELECT s.query_id, 5 AS code
    FROM searches AS s
    JOIN (
        SELECT person
        FROM (SELECT person, document, COUNT(*) AS n FROM clicks GROUP BY person, document) AS favourites
        GROUP BY person
        HAVING SUM(n) >= $repeat_clicks
            AND CAST(SUM(n * n) AS DOUBLE) > $max_collision * CAST(SUM(n) AS DOUBLE) * CAST(SUM(n) AS DOUBLE)
    ) AS o ON o.person = s.person
) AS found
GROUP BY query_id
