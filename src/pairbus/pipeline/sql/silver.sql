-- Clean records: names in lower case, and what follows from them.
WITH records AS (
    SELECT
        * EXCEPT (namespace, entity, destination, source, address),
        timestamp_micros(at_us) AS at,
        lower(namespace) AS namespace,
        lower(entity) AS entity,
        lower(destination) AS destination,
        lower(source) AS source,
        lower(address) AS address
    FROM {lines}
)
SELECT
    *,
    coalesce(destination, entity) AS target,
    contains(entity, :segment) AS on_backlog,
    if(on_backlog, entity, source) AS backlog,
    -- The pairing's primary: the head of a backlog queue's path; elsewhere the namespace's first label.
    coalesce(substring_index(backlog, :segment, 1), substring_index(namespace, '.', 1)) AS primary
FROM records
