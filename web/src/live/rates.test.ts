import { describe, expect, it } from "vitest";
import type { Point, Stats } from "../api/types";
import { Rates } from "./rates";

const stats = (more: Partial<Stats>): Stats => ({
  queue: "orders",
  ready: 0,
  delayed: 0,
  leased: 0,
  dead: 0,
  done: 0,
  oldest_age: null,
  paused: false,
  ...more,
});

const point = (at: number, rate: number): Point => ({
  at,
  ready: 0,
  delayed: 0,
  leased: 0,
  dead: 0,
  in_rate: rate,
  out_rate: rate,
  dead_rate: 0,
});

describe("rates", () => {
  it("count what came in, wherever it is by now, and what was finished", () => {
    const rates = new Rates();
    rates.hear(stats({ ready: 100 }), 100_000);
    rates.hear(stats({ ready: 100, leased: 10, done: 20, dead: 10 }), 110_000);
    expect(rates.rate("orders", 110_000)).toEqual({ in: 4, out: 2 });
  });

  it("fall to zero by themselves when nothing is heard any more", () => {
    const rates = new Rates();
    rates.hear(stats({}), 100_000);
    rates.hear(stats({ done: 50 }), 101_000);
    expect(rates.rate("orders", 105_000).out).toBe(10);
    expect(rates.rate("orders", 112_000)).toEqual({ in: 0, out: 0 });
  });

  it("look back no further than to the first thing heard", () => {
    const rates = new Rates();
    rates.hear(stats({}), 100_000);
    rates.hear(stats({ done: 8 }), 102_000);
    expect(rates.rate("orders", 102_000).out).toBe(4);
  });

  it("are never negative: a purge is no traffic", () => {
    const rates = new Rates();
    rates.hear(stats({ ready: 1000, done: 5 }), 100_000);
    rates.hear(stats({ ready: 0, done: 0 }), 105_000);
    expect(rates.rate("orders", 110_000)).toEqual({ in: 0, out: 0 });
  });

  it("go on from the recorder's points with what was heard since", () => {
    const rates = new Rates();
    rates.hear(stats({}), 100_000);
    rates.hear(stats({ done: 10 }), 104_000);
    rates.hear(stats({ done: 10 }), 109_000);
    const points = rates.points("orders", [point(95_000, 7), point(100_000, 7)], 5000, 110_000, 60);
    expect(points.map((each) => each.out)).toEqual([7, 7, 2, 0]);
  });

  it("keep a bounded past", () => {
    const rates = new Rates();
    for (let at = 0; at < 2_000_000; at += 1000) rates.hear(stats({ done: at }), at);
    expect(rates.points("orders", [], 5000, 2_000_000, 60).length).toBeLessThanOrEqual(60);
    expect(rates.rate("orders", 2_000_000).out).toBeGreaterThan(0);
  });
});
