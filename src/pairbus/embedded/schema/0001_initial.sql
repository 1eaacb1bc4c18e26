-- One namespace: its entities and their messages. Times are milliseconds since the Unix epoch, UTC.

-- Queues, topics, subscriptions and rules. `description` is JSON.
CREATE TABLE entity (
    id          INTEGER PRIMARY KEY,
    kind        TEXT NOT NULL CHECK (kind IN ('queue', 'topic', 'subscription', 'rule')),
    path        TEXT NOT NULL UNIQUE COLLATE NOCASE,
    description TEXT NOT NULL,
    created_ms  INTEGER NOT NULL,
    updated_ms  INTEGER NOT NULL,
    accessed_ms INTEGER NOT NULL
);

-- A message's bytes, kept once however many subscriptions hold it.
CREATE TABLE payload (
    id  INTEGER PRIMARY KEY,
    raw BLOB NOT NULL
);

-- A message's place in one queue. A queue's id is its entity's id times four, plus which of its sub-queues it is.
CREATE TABLE entry (
    queue_id        INTEGER NOT NULL,
    sequence_number INTEGER NOT NULL,
    payload_id      INTEGER NOT NULL,
    size            INTEGER NOT NULL,
    state           INTEGER NOT NULL,
    enqueued_ms     INTEGER NOT NULL,
    expires_ms      INTEGER NOT NULL,
    delivery_count  INTEGER NOT NULL,
    session_id      TEXT,
    scheduled_ms    INTEGER,
    origin          TEXT,
    PRIMARY KEY (queue_id, sequence_number)
) WITHOUT ROWID;

-- The next sequence number of a queue: it goes on after the messages are gone.
CREATE TABLE sequence (
    queue_id INTEGER PRIMARY KEY,
    next     INTEGER NOT NULL
);

CREATE TABLE session (
    queue_id   INTEGER NOT NULL,
    session_id TEXT NOT NULL,
    state      BLOB,
    updated_ms INTEGER NOT NULL,
    PRIMARY KEY (queue_id, session_id)
) WITHOUT ROWID;

-- Message ids within their entity's duplicate detection window.
CREATE TABLE seen (
    entity_id  INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    at_ms      INTEGER NOT NULL,
    PRIMARY KEY (entity_id, message_id)
) WITHOUT ROWID;
CREATE INDEX seen_by_time ON seen (entity_id, at_ms);

CREATE TABLE setting (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
);
