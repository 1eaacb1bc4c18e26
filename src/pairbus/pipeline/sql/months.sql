-- For each namespace and month: the billed operations (null if there are none), those that the pairing caused, by cause,
-- and the receives of restored messages that nobody recorded.
WITH parts AS (
    SELECT
        namespace,
        trunc(day, 'month') AS month,
        substring_index(entity, '/subscriptions/', 1) AS entity,
        cause,
        role = 'namespace' AS is_own,
        sum(billed) FILTER (WHERE in_bill AND namespace <> '') AS billed,
        -- The application's receive of a restored message looks like any other, so it is counted as its restore.
        sum(if(operation = 'restore', 2, 1) * billed) AS caused,
        sum(if(operation = 'restore', billed, 0)) AS restores,
        sum(if(operation = 'receive' AND outcome = 'ok' AND in_bill, billed, 0)) AS receives
    FROM {operations}
    GROUP BY ALL
),
entities AS (
    SELECT namespace, month, entity, sum(billed) AS billed, greatest(0, sum(restores) - sum(receives)) AS unrecorded
    FROM parts
    GROUP BY ALL
),
causes AS (
    -- A namespace's own ledger does not know which sends are restores, and client ledgers may be missing: the larger
    -- count is used.
    SELECT
        namespace, month, cause,
        greatest(sum(caused) FILTER (WHERE is_own), sum(caused) FILTER (WHERE NOT is_own)) AS caused
    FROM parts
    WHERE cause IS NOT NULL
    GROUP BY ALL
)
SELECT *
FROM (SELECT namespace, month, sum(billed) AS billed, sum(unrecorded) AS unrecorded FROM entities GROUP BY ALL)
LEFT JOIN (
    SELECT namespace, month, map_from_entries(collect_list(struct(cause, caused))) AS causes
    FROM causes
    WHERE caused > 0
    GROUP BY ALL
) USING (namespace, month)
