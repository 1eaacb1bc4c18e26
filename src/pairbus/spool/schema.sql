-- Messages in backlog form that neither namespace accepted, oldest first.
-- AUTOINCREMENT never reuses a number, so the order survives an empty journal.
CREATE TABLE IF NOT EXISTS message (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    entity TEXT NOT NULL,
    stored_ms INTEGER NOT NULL,
    raw BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS message_of_entity ON message (entity, number);
-- Messages that the backlog refused for good.
CREATE TABLE IF NOT EXISTS set_aside (
    number INTEGER PRIMARY KEY,
    entity TEXT NOT NULL,
    stored_ms INTEGER NOT NULL,
    raw BLOB NOT NULL,
    reason TEXT NOT NULL
) STRICT;
