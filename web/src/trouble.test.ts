import { describe, expect, it } from "vitest";
import type { Point, Stats } from "./api/types";
import { compare, trouble, type Seen } from "./trouble";

const NOW = 10_000_000;

function seen(stats: Partial<Stats>, more: Partial<Seen> = {}): Seen {
  const none = { ready: 0, delayed: 0, leased: 0, dead: 0, done: 0, oldest_age: null };
  return {
    stats: { queue: "orders", paused: false, ...none, ...stats },
    rate: { in: 0, out: 0 },
    points: [],
    ...more,
  };
}

const point = (more: Partial<Point>): Point => ({
  at: NOW,
  ready: 0,
  delayed: 0,
  leased: 0,
  dead: 0,
  in_rate: 0,
  out_rate: 0,
  dead_rate: 0,
  ...more,
});

describe("trouble", () => {
  it("is none where all is well", () => {
    expect(trouble(seen({ ready: 5, oldest_age: 3 }), NOW)).toEqual({ level: 0, reasons: [] });
  });

  it("is worst where messages wait and nobody comes", () => {
    const found = trouble(seen({ ready: 5, oldest_age: 733 }), NOW);
    expect(found).toEqual({ level: 4, reasons: ["nobody leases, oldest waits 12m 13s"] });
  });

  it("is less where somebody works, however slowly", () => {
    const slow = trouble(seen({ ready: 5, leased: 1, oldest_age: 733 }), NOW);
    expect(slow).toEqual({ level: 3, reasons: ["oldest waits 12m 13s"] });
    const points = [point({ at: NOW - 30_000, out_rate: 0.1 })];
    expect(trouble(seen({ ready: 5, oldest_age: 100 }, { points }), NOW).level).toBe(0);
    const before = [point({ at: NOW - 90_000, out_rate: 0.1 })];
    expect(trouble(seen({ ready: 5, oldest_age: 100 }, { points: before }), NOW).level).toBe(4);
  });

  it("names the dead, and how fresh they are", () => {
    const points = [point({ at: NOW - 120_000, dead_rate: 1 }), point({})];
    const fresh = trouble(seen({ dead: 1204 }, { points }), NOW);
    expect(fresh).toEqual({ level: 3, reasons: ["1,204 dead, last 2m 00s ago"] });
    expect(trouble(seen({ dead: 14 }), NOW)).toEqual({ level: 2, reasons: ["14 dead"] });
  });

  it("does not call a paused queue stuck", () => {
    const found = trouble(seen({ paused: true, ready: 14, oldest_age: 9000 }), NOW);
    expect(found).toEqual({ level: 2, reasons: ["paused, 14 wait"] });
    expect(trouble(seen({ paused: true }), NOW)).toEqual({ level: 1, reasons: ["paused"] });
  });

  it("sees a backlog that grows", () => {
    const points = [point({ at: NOW - 300_000, ready: 100 }), point({ ready: 400 })];
    const found = trouble(seen({ ready: 400, leased: 2, oldest_age: 20 }, { points }), NOW);
    expect(found).toEqual({ level: 2, reasons: ["growing, +300 in 5m 00s"] });
  });

  it("tells all reasons, the worst first", () => {
    const found = trouble(seen({ ready: 1, dead: 2, oldest_age: 61 }), NOW);
    expect(found.reasons).toEqual(["nobody leases, oldest waits 1m 01s", "2 dead"]);
  });
});

describe("the order of queues", () => {
  const row = (queue: string, level: 0 | 2 | 4, ready: number) => ({
    stats: seen({ queue, ready }).stats,
    trouble: { level, reasons: [] },
  });

  it("is by trouble, then by order of magnitude, then by name", () => {
    const rows = [
      row("b", 0, 0),
      row("z", 2, 5),
      row("y", 4, 1),
      row("x", 2, 5000),
      row("a", 0, 0),
    ];
    expect(rows.sort(compare).map((each) => each.stats.queue)).toEqual(["y", "x", "z", "a", "b"]);
  });

  it("does not change with every message", () => {
    expect(compare(row("a", 2, 520), row("b", 2, 530))).toBeLessThan(0);
    expect(compare(row("a", 2, 530), row("b", 2, 520))).toBeLessThan(0);
  });
});
