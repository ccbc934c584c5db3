import { describe, expect, it } from "vitest";
import type { LiveEvent } from "./events";
import { touched } from "./refresh";

const event = (type: string, payload: Record<string, unknown> = {}): LiveEvent => ({
  type,
  timestamp: 1,
  payload,
});

describe("what an event makes old", () => {
  it("is the queue and its dead letters, when a sweep moved something", () => {
    for (const type of ["requeue", "move_to_dlq"]) {
      expect(touched(event(type, { queue: "orders", count: 3 }))).toEqual([
        "queue:orders",
        "dead:orders",
        "stats",
      ]);
    }
  });

  it("is everything, when it does not say which queue", () => {
    expect(touched(event("requeue", { count: 3 }))).toEqual(["everything"]);
    expect(touched(event("reload"))).toEqual(["everything"]);
  });

  it("is the redrive that moved on, by its id", () => {
    const said = touched(event("redrive", { queue: "orders", dlq: "orders.dlq", id: "r1" }));
    expect(said).toContain("redrive:r1");
    expect(said).toContain("redrives");
    expect(said).toContain("dead:orders");
    expect(touched(event("redrive", { dlq: "orders.dlq", id: null }))).toContain("dead:orders");
  });

  it("goes with the queue when only its dead letters are named", () => {
    expect(touched(event("stats", { queue: "orders.dlq" }))).toEqual(["queue:orders"]);
  });

  it("is the topic too, when a group of it moved", () => {
    expect(touched(event("stats", { queue: "shop@mail" }))).toEqual(["queue:shop@mail", "topics"]);
  });

  it("is the log of actions, and what the action may have changed", () => {
    expect(touched(event("action", { queue: "orders", what: "pause" }))).toEqual(
      expect.arrayContaining(["queue:orders", "actions", "queues", "stats"]),
    );
  });

  it("is nothing for a ping, and only its queue for an event of a later server", () => {
    expect(touched(event("ping"))).toEqual([]);
    expect(touched(event("who knows", { queue: "orders" }))).toEqual(["queue:orders"]);
  });
});
