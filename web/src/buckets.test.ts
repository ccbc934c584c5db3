import { describe, expect, it } from "vitest";
import { axis, spread } from "./buckets";

describe("bars over time", () => {
  const old = [{ at: 1_000, count: 3 }];
  const fresh = [{ at: 10_000, count: 2 }];

  it("stand on one axis for all groups, which ends now", () => {
    const scale = axis([old, fresh], 1000, 12_500);
    const counts = (by: typeof old) => spread(by, scale, 12_500).map((bar) => bar.count);
    expect(counts(old)).toEqual([3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    expect(counts(fresh)).toEqual([0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0]);
  });

  it("are put together when there would be too many, and none is lost", () => {
    const many = Array.from({ length: 500 }, (_, n) => ({ at: n * 1000, count: 1 }));
    const made = spread(many, axis([many], 1000, 499_999), 499_999);
    expect(made.length).toBeLessThanOrEqual(30);
    expect(made.reduce((all, bar) => all + bar.count, 0)).toBe(500);
  });
});
