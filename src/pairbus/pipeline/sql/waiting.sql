-- How long messages waited.
WITH waited AS (
    SELECT
        day, primary, target, waiting,
        -- Clocks of two processes may differ, so a negative wait counts as 0.
        if(
            home_at IS NOT NULL, greatest(0e0, (unix_micros(home_at) - unix_micros(diverted_at)) / 1e6), NULL
        ) AS seconds
    FROM {audit}
    WHERE diverted_at IS NOT NULL
),
summed AS (
    SELECT
        day, primary, target,
        count(seconds) AS messages,
        count_if(waiting > 0) AS still_waiting,
        -- Summed as whole microseconds: a sum of fractions depends on the row order, and builds must be repeatable.
        try_divide(sum(CAST(round(seconds * 1e6) AS BIGINT)), count(seconds)) / 1e6 AS mean_seconds,
        percentile(seconds, array(0.5, 0.9, 0.99)) AS percentiles,
        max(seconds) AS max_seconds
    FROM waited
    GROUP BY day, primary, target
)
SELECT
    *,
    get(percentiles, 0) AS p50_seconds,
    get(percentiles, 1) AS p90_seconds,
    get(percentiles, 2) AS p99_seconds
FROM summed
