-- The share of sends that were accepted. A message that was refused and never accepted counts once, however often it was
-- sent. A failed restore is not a refused send.
WITH summed AS (
    SELECT
        day, primary, target,
        sum(accepted) AS accepted,
        sum(accepted_by_primary) AS accepted_by_primary,
        sum(refused) AS refused
    FROM (
        SELECT
            day, primary, target,
            operations AS accepted,
            if(is_direct, operations, 0) AS accepted_by_primary,
            0 AS refused
        FROM {operations}
        WHERE is_accepted AND role <> 'namespace'
        UNION ALL
        SELECT day, primary, target, 0, 0, 1
        FROM {messages}
        WHERE accepted = 0 AND refused > 0
    )
    GROUP BY day, primary, target
)
SELECT
    *,
    accepted + refused AS offered,
    accepted / offered AS with_pairing,
    accepted_by_primary / offered AS without_pairing
FROM summed
