-- The numbers of each process's records. They are counted as bits, 64 to a word: that is exact, and one row is shuffled
-- for 64 records.
WITH words AS (
    SELECT
        process,
        shiftright(n, 6) AS word,
        bit_or(shiftleft(1L, CAST(n & 63 AS INT))) AS bits,
        count(*) AS records,
        min(n) AS first,
        max(n) AS last
    FROM {records}
    GROUP BY ALL
)
SELECT process, min(first), max(last), sum(records), sum(bit_count(bits))
FROM words
GROUP BY process
