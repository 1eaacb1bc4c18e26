-- Each failover from its first transition to its last, with its diverted messages.
WITH failovers AS (
    SELECT
        primary, target, process, episode,
        min(day) AS day,
        min(at) FILTER (WHERE state_to = 'suspect') AS suspect_at,
        min(at) FILTER (WHERE state_to = 'failed over') AS failed_over_at,
        min_by(cause, struct(at, n)) AS cause,
        max_by(struct(state_to, at, cause), struct(at, n)) AS last
    FROM {transitions}
    GROUP BY primary, target, process, episode
),
carried AS (
    SELECT
        episode,
        sum(diverted) AS diverted,
        sum(home) AS home,
        sum(waiting) AS waiting,
        min(first_diverted_at) AS first_diverted_at,
        max(last_home_at) AS last_home_at
    FROM {episode_messages}
    GROUP BY episode
)
SELECT
    * EXCEPT (diverted, home, waiting),
    coalesce(carried.diverted, 0) AS diverted,
    coalesce(carried.home, 0) AS home,
    coalesce(carried.waiting, 0) AS waiting,
    if(last.state_to = 'healthy', last.at, NULL) AS healthy_at,
    if(last.state_to = 'healthy', last.cause, NULL) AS ended_by,
    (unix_micros(healthy_at) - unix_micros(failed_over_at)) / 1e6 AS failed_over_seconds,
    (unix_micros(first_diverted_at) - unix_micros(failed_over_at)) / 1e6 AS seconds_to_first_backlog_message,
    if(
        carried.waiting = 0 AND carried.diverted > 0, (unix_micros(last_home_at) - unix_micros(healthy_at)) / 1e6, NULL
    ) AS seconds_to_drained
FROM failovers
LEFT JOIN carried USING (episode)
