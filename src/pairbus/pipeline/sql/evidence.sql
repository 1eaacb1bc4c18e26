-- What each record proves, as marks to be summed.
WITH records AS (
    SELECT
        *,
        outcome = 'ok' AS is_ok,
        outcome = 'unknown' AS is_unknown,
        role <> 'namespace' AS by_client,
        route <=> 'spool' AS from_spool,
        operation IN ('send', 'schedule') AS is_send,
        operation = 'divert' AS is_divert,
        operation = 'spool' AS is_spool,
        operation = 'restore' AS is_restore,
        operation IN ('complete', 'dead-letter') AS is_settled,
        operation IN ('expire', 'resubmit') AS is_moved,
        -- Whether the application sent it, on any route, and not a journal.
        (is_send OR is_divert) AND NOT from_spool OR is_spool AS is_offered,
        (is_send OR is_divert) AND from_spool AS is_unspooled
    FROM {records}
)
SELECT
    k1, primary, target, message_id, subscription,
    if(is_divert, episode, NULL) AS episode,
    at AS first_at,
    at AS last_at,
    if(is_ok AND by_client AND is_offered AND NOT is_send, at, NULL) AS diverted_at,
    if(is_ok AND by_client AND (is_restore OR (is_send AND from_spool)), at, NULL) AS home_at,
    int(is_ok AND by_client AND is_offered) AS accepted,
    int(is_ok AND by_client AND is_send) AS direct,
    int(is_ok AND by_client AND is_divert) AS diverted,
    int(is_ok AND is_spool) AS spooled,
    int(is_ok AND by_client AND is_unspooled) AS unspooled,
    int(is_ok AND is_restore) AS restored,
    int(is_ok AND by_client AND on_backlog AND operation = 'dead-letter') AS dead_lettered,
    int(is_ok AND on_backlog AND operation = 'expire') AS expired,
    int(is_ok AND operation = 'resubmit') AS resubmitted,
    int(is_ok AND by_client AND on_backlog AND operation = 'complete') AS removed,
    int(is_ok AND by_client AND NOT on_backlog AND is_settled) AS received,
    int(outcome = 'failed' AND by_client AND (is_send OR is_divert OR is_restore OR is_spool)) AS failed,
    int(is_unknown AND (is_send OR is_divert OR is_restore OR is_spool)) AS in_doubt,
    int(outcome IN ('failed', 'unknown') AND by_client AND is_offered) AS refused,
    int(is_unknown AND by_client AND is_offered AND NOT is_send) AS unanswered,
    int(by_client AND (is_restore OR (is_ok AND (is_unspooled OR (on_backlog AND (is_settled OR is_moved)))))) AS handled,
    int(is_ok AND NOT by_client AND NOT on_backlog AND is_send) AS namespace_home,
    int(is_ok AND NOT by_client AND NOT on_backlog AND is_settled) AS namespace_received,
    int(coalesce(id_hashed, false)) AS hashed
FROM records
