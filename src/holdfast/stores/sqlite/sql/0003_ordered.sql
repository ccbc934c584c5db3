-- Queues whose partitions have owners. starts: the first partition of each generation, as JSON.

ALTER TABLE holdfast_queue ADD COLUMN ordered INTEGER NOT NULL DEFAULT 0;
ALTER TABLE holdfast_queue ADD COLUMN starts TEXT NOT NULL DEFAULT '[0]';
