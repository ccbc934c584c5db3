-- Small values that outlive processes: what a reader holds, verdicts on a batch, receipts.

CREATE TABLE holdfast.record (
  kind       text COLLATE "C" NOT NULL,
  name       text COLLATE "C" NOT NULL,
  revision   bigint NOT NULL,
  updated_at bigint NOT NULL,
  value      bytea NOT NULL,
  PRIMARY KEY (kind, name)
) WITH (autovacuum_vacuum_scale_factor = 0.02);

UPDATE holdfast.meta SET value = '2' WHERE name = 'version';
