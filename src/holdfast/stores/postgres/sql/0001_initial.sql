-- Holdfast's own schema. One table holds every message that is not finished, whatever its state: it
-- cannot be in two.

CREATE SCHEMA IF NOT EXISTS holdfast;

CREATE TABLE holdfast.meta (
  name  text PRIMARY KEY,
  value text NOT NULL
);
-- store: who this is, to tell one database from another. version: how many scripts have run.
INSERT INTO holdfast.meta VALUES ('store', gen_random_uuid()::text), ('version', '1');

-- Order of acceptance, and places in line; never used twice.
CREATE SEQUENCE holdfast.seq;
CREATE SEQUENCE holdfast.home;

-- qid = 2 * home, plus 1 for the dead-letter queue. An id lives once per home.
CREATE TABLE holdfast.queue (
  qid        integer PRIMARY KEY,
  name       text COLLATE "C" NOT NULL UNIQUE,
  partitions integer NOT NULL,
  paused     boolean NOT NULL,
  policy     text NOT NULL,
  created_at bigint NOT NULL,
  revision   integer NOT NULL
);

-- state: 0 ready, 1 delayed, 2 leased. seq: order of acceptance. place: position in line; the seq,
-- except in a dead-letter queue, where it is the order of dying. rank: 9 - lane, so that one
-- ascending index is the order of leasing. split: the queue has more than one partition. token: of the
-- lease that is held or, with its verb, of the last one that ended, to know a repeated call.
CREATE TABLE holdfast.message (
  seq             bigint NOT NULL,
  place           bigint NOT NULL,
  available_at    bigint NOT NULL,
  enqueued_at     bigint NOT NULL,
  deadline        bigint,
  token           bigint,
  leased_at       bigint,
  first_leased_at bigint,
  home            integer NOT NULL,
  qid             integer NOT NULL,
  part            integer NOT NULL,
  attempts        integer NOT NULL,
  state           smallint NOT NULL,
  rank            smallint NOT NULL,
  priority        smallint NOT NULL,
  split           boolean NOT NULL,
  id              uuid NOT NULL,
  max_attempts    integer,
  ack_timeout     double precision,
  verb            text,
  owner           text,
  batch           text,
  key             text,
  type            text,
  content_type    text,
  headers         text,
  backoff         text,
  history         text,
  body            bytea NOT NULL,
  PRIMARY KEY (id, home)  -- by id first: "id = ANY" must never be a filter over a whole home
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX message_ready ON holdfast.message (qid, rank, place) WHERE state = 0;
CREATE INDEX message_ready_split ON holdfast.message (qid, part, rank, place)
  WHERE state = 0 AND split;
CREATE INDEX message_delayed ON holdfast.message (qid, available_at, seq) WHERE state = 1;
CREATE INDEX message_leased ON holdfast.message (qid, deadline, seq) WHERE state = 2;
CREATE INDEX message_batch ON holdfast.message (batch, qid, id) WHERE batch IS NOT NULL;

-- What is finished, a partition for each day: retention drops whole days where it can. Rows for which
-- there is no day yet go to log_other.
CREATE TABLE holdfast.log (
  seq             bigint NOT NULL,
  finished_at     bigint NOT NULL,
  available_at    bigint NOT NULL,
  enqueued_at     bigint NOT NULL,
  token           bigint,
  leased_at       bigint,
  first_leased_at bigint,
  qid             integer NOT NULL,
  part            integer NOT NULL,
  attempts        integer NOT NULL,
  priority        smallint NOT NULL,
  id              uuid NOT NULL,
  max_attempts    integer,
  ack_timeout     double precision,
  status          text NOT NULL,
  verb            text,
  owner           text,
  key             text,
  type            text,
  content_type    text,
  headers         text,
  backoff         text,
  history         text,
  result          bytea,
  body            bytea NOT NULL
) PARTITION BY RANGE (finished_at);

CREATE INDEX log_id ON holdfast.log (id);
CREATE INDEX log_finished ON holdfast.log (qid, finished_at, seq);
CREATE TABLE holdfast.log_other PARTITION OF holdfast.log DEFAULT;

-- Today, for what is finished before the first sweep makes days.
DO $$
DECLARE
  day bigint := floor(extract(epoch FROM clock_timestamp()) / 86400);
BEGIN
  EXECUTE format(
    'CREATE TABLE %1$s_%2$s PARTITION OF %1$s FOR VALUES FROM (%3$s) TO (%4$s)',
    'holdfast.log', day, day * 86400000, (day + 1) * 86400000);
END $$;

-- Counts are the sum of what every write added: nobody waits for a row that another one counts in.
-- Many rows are folded into few as they come. day: of the log rows that `logged` counts.
CREATE TABLE holdfast.delta (
  qid     integer NOT NULL,
  part    integer NOT NULL,
  day     integer NOT NULL DEFAULT 0,
  ready   bigint NOT NULL DEFAULT 0,
  delayed bigint NOT NULL DEFAULT 0,
  leased  bigint NOT NULL DEFAULT 0,
  done    bigint NOT NULL DEFAULT 0,
  logged  bigint NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX delta_qid ON holdfast.delta (qid);

CREATE TABLE holdfast.claim (
  name       text PRIMARY KEY,
  owner      text NOT NULL,
  epoch      bigint NOT NULL,
  expires_at bigint NOT NULL
);

CREATE TABLE holdfast.event (
  seq       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  type      text NOT NULL,
  timestamp bigint NOT NULL,
  payload   text NOT NULL
);
