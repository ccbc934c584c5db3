-- Queues whose partitions have owners. starts: the first partition of each generation. split: new
-- messages are marked as of one partition among many, even if there is one only: more are coming.

ALTER TABLE holdfast.queue
  ADD COLUMN ordered boolean NOT NULL DEFAULT false,
  ADD COLUMN starts integer[] NOT NULL DEFAULT '{0}',
  ADD COLUMN split boolean NOT NULL DEFAULT false;

UPDATE holdfast.meta SET value = '3' WHERE name = 'version';
