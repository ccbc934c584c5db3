-- One table holds every message that is not finished, whatever its state: it cannot be in two.

CREATE TABLE holdfast_meta (
  name  TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) WITHOUT ROWID;

INSERT INTO holdfast_meta VALUES ('seq', 0), ('home', 0), ('lease', 0);

-- qid = 2 * home, plus 1 for the dead-letter queue. An id lives once per home.
CREATE TABLE holdfast_queue (
  qid        INTEGER PRIMARY KEY,
  name       TEXT NOT NULL UNIQUE,
  partitions INTEGER NOT NULL,
  paused     INTEGER NOT NULL,
  policy     TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  revision   INTEGER NOT NULL
);

-- state: 0 ready, 1 delayed, 2 leased. seq: order of acceptance, never used twice.
-- place: position in line; the seq, except in a dead-letter queue, where it is the order of dying.
-- lease and deadline count while it is leased; before, they hold numbers of the same length, so that
-- leasing does not make the row grow. token and verb say how the last lease ended, to know a
-- repeated call.
CREATE TABLE holdfast_message (
  seq             INTEGER PRIMARY KEY,
  home            INTEGER NOT NULL,
  qid             INTEGER NOT NULL,
  state           INTEGER NOT NULL,
  part            INTEGER NOT NULL,
  lane            INTEGER NOT NULL,
  place           INTEGER NOT NULL,
  available_at    INTEGER NOT NULL,
  attempts        INTEGER NOT NULL,
  lease           INTEGER NOT NULL,
  deadline        INTEGER NOT NULL,
  id              TEXT NOT NULL,
  priority        INTEGER NOT NULL,
  key             TEXT,
  type            TEXT,
  content_type    TEXT,
  headers         TEXT,
  enqueued_at     INTEGER NOT NULL,
  ack_timeout     REAL,
  max_attempts    INTEGER,
  backoff         TEXT,
  history         TEXT,
  first_leased_at INTEGER,
  token           TEXT,
  verb            TEXT,
  batch           TEXT,
  body            BLOB NOT NULL
);

CREATE UNIQUE INDEX holdfast_message_id ON holdfast_message (home, id);
CREATE INDEX holdfast_ready ON holdfast_message (qid, part, lane DESC, place) WHERE state = 0;
CREATE INDEX holdfast_delayed ON holdfast_message (qid, available_at) WHERE state = 1;
CREATE INDEX holdfast_leased ON holdfast_message (qid, deadline) WHERE state = 2;
CREATE INDEX holdfast_batch ON holdfast_message (batch, qid, id) WHERE batch IS NOT NULL;

-- One row for all messages of a lease call. A token is call.lease.seq. open: how many it still holds.
CREATE TABLE holdfast_lease (
  lease     INTEGER PRIMARY KEY,
  call      TEXT NOT NULL,
  owner     TEXT NOT NULL,
  leased_at INTEGER NOT NULL,
  open      INTEGER NOT NULL
);

CREATE TABLE holdfast_log (
  seq             INTEGER PRIMARY KEY,
  qid             INTEGER NOT NULL,
  finished_at     INTEGER NOT NULL,
  status          TEXT NOT NULL,
  id              TEXT NOT NULL,
  part            INTEGER NOT NULL,
  priority        INTEGER NOT NULL,
  key             TEXT,
  type            TEXT,
  content_type    TEXT,
  headers         TEXT,
  enqueued_at     INTEGER NOT NULL,
  available_at    INTEGER NOT NULL,
  attempts        INTEGER NOT NULL,
  ack_timeout     REAL,
  max_attempts    INTEGER,
  backoff         TEXT,
  history         TEXT,
  first_leased_at INTEGER,
  leased_at       INTEGER,
  owner           TEXT,
  lease           INTEGER,
  verb            TEXT,
  result          BLOB,
  body            BLOB NOT NULL
);

CREATE UNIQUE INDEX holdfast_log_id ON holdfast_log (qid, id);
CREATE INDEX holdfast_log_finished ON holdfast_log (qid, finished_at);

-- Counts, kept in the same transaction as what they count. logged: rows the log holds now.
CREATE TABLE holdfast_depth (
  qid     INTEGER NOT NULL,
  part    INTEGER NOT NULL,
  ready   INTEGER NOT NULL,
  delayed INTEGER NOT NULL,
  leased  INTEGER NOT NULL,
  done    INTEGER NOT NULL,
  logged  INTEGER NOT NULL,
  PRIMARY KEY (qid, part)
) WITHOUT ROWID;

CREATE TABLE holdfast_claim (
  name       TEXT PRIMARY KEY,
  owner      TEXT NOT NULL,
  epoch      INTEGER NOT NULL,
  expires_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE holdfast_event (
  seq       INTEGER PRIMARY KEY AUTOINCREMENT,
  type      TEXT NOT NULL,
  timestamp INTEGER NOT NULL,
  payload   TEXT NOT NULL
);
