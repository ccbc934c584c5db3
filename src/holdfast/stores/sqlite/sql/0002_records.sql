-- Small values that outlive processes: what a reader holds, verdicts on a batch, receipts.

CREATE TABLE holdfast_record (
  kind       TEXT NOT NULL,
  name       TEXT NOT NULL,
  value      BLOB NOT NULL,
  revision   INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  PRIMARY KEY (kind, name)
) WITHOUT ROWID;
