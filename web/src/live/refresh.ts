/**
 * Which of what is on the screen an event makes old. A subject is a word that queries carry; an
 * event names subjects, and whatever carries one of them is asked for again.
 */
import { sourceOf } from "../api/rights";
import type { LiveEvent } from "./events";

export type Subject =
  | "everything"
  | "stats"
  | "queues"
  | "topics"
  | "redrives"
  | "actions"
  | "spark"
  | "history"
  | `queue:${string}`
  | `dead:${string}`
  | `redrive:${string}`;

export function touched(event: LiveEvent): Subject[] {
  const { payload } = event;
  const queue = typeof payload.queue === "string" ? payload.queue : undefined;
  const dlq = typeof payload.dlq === "string" ? payload.dlq : undefined;
  const source = queue ? sourceOf(queue) : dlq && sourceOf(dlq);
  const about: Subject[] = source ? [`queue:${source}`] : [];
  switch (event.type) {
    case "ping":
      return [];
    case "stats":
      // The numbers are in the event itself; what the queue holds has moved.
      return source && source.includes("@") ? [...about, "topics"] : about;
    case "requeue":
    case "move_to_dlq":
      return source ? [...about, `dead:${source}`, "stats"] : ["everything"];
    case "redrive": {
      const id = typeof payload.id === "string" ? payload.id : undefined;
      const one: Subject[] = id ? [`redrive:${id}`] : [];
      const all: Subject[] = source ? [`dead:${source}`, "stats"] : ["stats"];
      return [...about, ...all, ...one, "redrives"];
    }
    case "action":
      return [...about, "actions", "queues", "stats", "topics"];
    case "gone":
      // Of a queue that was deleted no numbers come any more: only a new list leaves it out.
      return [...about, "queues", "stats", "topics"];
    case "reload":
      return ["everything"];
    default:
      return about;
  }
}
