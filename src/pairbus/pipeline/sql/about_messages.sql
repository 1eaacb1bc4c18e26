-- The records about messages. Most are plain: of a message that simply goes to the primary and is received.
WITH records AS (
    SELECT
        *,
        outcome = 'ok' AND NOT on_backlog AS is_done,
        operation IN ('complete', 'dead-letter') AS is_settled,
        is_done AND is_settled AND contains(target, '/subscriptions/') AS is_of_subscription,
        is_done AND (is_settled OR operation IN ('send', 'schedule')) AND NOT (route <=> 'spool') AS plain
    FROM {silver}
    WHERE message_id IS NOT NULL
        AND operation IN (
            'send', 'schedule', 'divert', 'spool', 'restore', 'complete', 'dead-letter', 'expire', 'resubmit'
        )
        -- A namespace does not know the destination of a message in a backlog; and clients record refusals themselves.
        AND (role <> 'namespace' OR (outcome = 'ok' AND NOT on_backlog))
)
SELECT
    * EXCEPT (target, is_done, is_settled, is_of_subscription),
    -- A message received from a subscription is its topic's message.
    if(is_of_subscription, substring_index(target, '/subscriptions/', 1), target) AS target,
    if(is_of_subscription, substring_index(target, '/subscriptions/', -1), '') AS subscription
FROM records
