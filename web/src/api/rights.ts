/**
 * Which buttons a key gets. The server decides (403); this only spares people buttons that cannot
 * work. Patterns are those of docs/keys.md: `*` is any run of characters, dead letters go with their
 * queue, and other names that end in .dlq are matched only by patterns that end so.
 */
import type { Identity, Right } from "./types";

const DLQ = ".dlq";

export function may(who: Identity | undefined, right: Right, queue: string): boolean {
  if (who === undefined) return false;
  if (!who.rights.includes(right) && !who.rights.includes("admin")) return false;
  return who.queues.some((pattern) => covers(pattern, queue));
}

/** The store as a whole: sweeping, Spark's records, keys. */
export function mayWhole(who: Identity | undefined, right: Right): boolean {
  if (who === undefined) return false;
  return (who.rights.includes(right) || who.rights.includes("admin")) && who.queues.includes("*");
}

export function covers(pattern: string, queue: string): boolean {
  if (!queue.endsWith(DLQ)) return glob(pattern, queue);
  if (pattern.endsWith(DLQ) && glob(pattern, queue)) return true;
  return glob(pattern, queue.slice(0, -DLQ.length));
}

function glob(pattern: string, name: string): boolean {
  const parts = pattern.split("*").map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return new RegExp(`^${parts.join(".*")}$`, "s").test(name);
}

export function dlqOf(queue: string): string {
  return queue.endsWith(DLQ) ? queue : queue + DLQ;
}

export function sourceOf(dlq: string): string {
  return dlq.endsWith(DLQ) ? dlq.slice(0, -DLQ.length) : dlq;
}
