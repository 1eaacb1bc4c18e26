-- One verdict for each message, according to the ledger alone. `pairbus.pipeline.audit` defines the numbers.
WITH subscriptions AS (
    SELECT
        k1, k2,
        max(greatest(received, namespace_received)) AS most,
        min(first_at) AS first_receipt,
        max(last_at) AS last_receipt
    FROM {messages}
    WHERE subscription <> ''
    GROUP BY k1, k2
),
messages AS (
    -- `greatest` and `least` skip nulls.
    SELECT
        * EXCEPT (accepted, received, first_at, last_at),
        int(handled > 0 AND accepted = 0 AND unanswered = 0) AS inferred,
        accepted + inferred AS accepted,
        greatest(direct + restored, namespace_home) AS home,
        greatest(received, namespace_received, most) AS received,
        least(first_at, first_receipt) AS first_at,
        greatest(last_at, last_receipt) AS last_at
    FROM {messages}
    LEFT JOIN subscriptions USING (k1, k2)
    WHERE subscription = ''
),
judged AS (
    -- A copy may be buried more than once, or although it came home. Only as many count as accepted copies are missing.
    SELECT
        *,
        if(
            :require_receipts,
            greatest(least(accepted, received), if(received > 0, least(accepted, home), 0)),
            least(accepted, greatest(home, received))
        ) AS delivered,
        accepted - delivered AS undelivered,
        least(undelivered, greatest(0, dead_lettered - resubmitted)) AS stay_dead,
        undelivered - stay_dead AS unburied,
        least(unburied, greatest(0, expired - greatest(0, resubmitted - dead_lettered))) AS stay_expired,
        unburied - stay_expired AS outstanding,
        least(outstanding, greatest(0, removed - restored)) AS lost,
        outstanding - lost AS waiting,
        greatest(0, if(received > 0, received, home) - greatest(1, accepted)) AS duplicates
    FROM messages
)
SELECT * EXCEPT (dead_lettered, expired), stay_dead AS dead_lettered, stay_expired AS expired
FROM judged
