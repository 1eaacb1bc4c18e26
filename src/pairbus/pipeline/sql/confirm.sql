-- The audit, with the waiting messages compared with those that were seen in the queues.
WITH seen AS (
    SELECT
        primary, target, message_id,
        int(count_if(place = 'backlog')) AS seen,
        int(count_if(place = 'dead-letter')) AS buried
    FROM {seen}
    GROUP BY primary, target, message_id
),
compared AS (
    SELECT
        audited.*,
        coalesce(seen.seen, 0) AS seen,
        coalesce(seen.buried, 0) AS buried,
        is_looked_into
            AND last_at < timestamp_micros(:began_us)
            AND (:is_salt_right OR coalesce(hashed, 0) = 0)
            AND unread.message_id IS NULL AS is_comparable,
        if(is_comparable, greatest(0, waiting - greatest(0, spooled - unspooled)), 0) AS looked_for
    FROM {audited} AS audited
    LEFT JOIN seen USING (primary, target, message_id)
    LEFT JOIN {unread} AS unread ON audited.message_id = unread.message_id
),
checked AS (
    SELECT
        *,
        waiting - looked_for AS unchecked,
        greatest(0, looked_for - seen) AS not_found,
        -- In a dead-letter queue, without a record of that.
        least(not_found, greatest(0, buried - dead_lettered - expired)) AS found_dead,
        not_found - found_dead AS absent,
        if(:sure, 0, absent) AS unsure
    FROM compared
)
SELECT
    * EXCEPT (dead_lettered, lost, waiting),
    dead_lettered + found_dead AS dead_lettered,
    lost + absent - unsure AS lost,
    waiting - found_dead - absent + unsure AS waiting
FROM checked
