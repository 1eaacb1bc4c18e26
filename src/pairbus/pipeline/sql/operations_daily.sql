-- Operations and billed units, by every dimension that does not follow from the others.
WITH grouped AS (
    SELECT
        day, entity, primary, target, role, operation, route, outcome, on_backlog, address,
        -- Some clients know a namespace by its host, some by its name. It has one bill.
        regexp_replace(namespace, :host, '$1') AS namespace,
        -- Sums of fixed width stay in a hash table.
        count(*) AS operations,
        sum(billed) AS billed,
        sum(bytes) AS bytes,
        sum(latency_us) AS latency_us_sum,
        max(latency_us) AS latency_us_max
    FROM {silver}
    WHERE operation NOT IN ('ledger-open', 'ledger-close', 'ledger-gap', 'transition')
    GROUP BY ALL
),
addresses AS (
    SELECT
        *,
        collect_set(if(address IS NOT NULL, struct(address, namespace), NULL)) OVER (PARTITION BY day) AS known
    FROM grouped
),
named AS (
    -- A namespace that keeps its own ledger has a name in it, where clients may know only its address.
    SELECT
        * EXCEPT (namespace, known),
        coalesce(get(filter(array_sort(known), own -> own.address = namespace), 0).namespace, namespace) AS namespace
    FROM addresses
)
SELECT
    *,
    -- Such a namespace has counted the operations of all clients, so their records would count twice. It does not
    -- record receives and peeks without a message.
    role = 'namespace'
        OR NOT max(role = 'namespace') OVER (PARTITION BY day, namespace)
        OR (operation IN ('receive', 'peek') AND outcome = 'empty') AS in_bill
FROM named
