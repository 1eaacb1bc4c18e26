-- The messages diverted in each failover, by the day of the messages.
SELECT
    episode,
    day,
    count(*) AS diverted,
    count(home_at) AS home,
    count_if(waiting > 0) AS waiting,
    min(diverted_at) AS first_diverted_at,
    max(home_at) AS last_home_at
FROM {audit}
WHERE episode IS NOT NULL
GROUP BY episode, day
