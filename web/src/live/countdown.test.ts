import { describe, expect, it } from "vitest";
import { countdown, isRunning, span, toGo } from "./countdown";

const NOW = 1_794_855_604_037;

describe("a countdown", () => {
  it("rounds up, so that it ends with the lease and not a second before", () => {
    expect(countdown(NOW + 30_000, NOW)).toBe("30s");
    expect(countdown(NOW + 29_001, NOW)).toBe("30s");
    expect(countdown(NOW + 29_000, NOW)).toBe("29s");
    expect(countdown(NOW + 1, NOW)).toBe("1s");
  });

  it("is overdue from the deadline on", () => {
    expect(countdown(NOW, NOW)).toBe("Overdue");
    expect(countdown(NOW - 60_000, NOW)).toBe("Overdue");
  });

  it("says nothing where there is no start", () => {
    expect(countdown(undefined, NOW)).toBe("—");
    expect(countdown(null, NOW)).toBe("—");
  });

  it("needs the timer only while what it says can change", () => {
    expect(isRunning(NOW + 1, NOW)).toBe(true);
    expect(isRunning(NOW, NOW)).toBe(false);
    expect(isRunning(undefined, NOW)).toBe(false);
  });
});

describe("time to go", () => {
  it("is told to two units", () => {
    expect(toGo(NOW + 4_200, NOW)).toBe("5s");
    expect(toGo(NOW + 725_000, NOW)).toBe("12m 05s");
    expect(toGo(NOW + 12_000_000, NOW)).toBe("3h 20m");
    expect(toGo(NOW + 187_200_000, NOW)).toBe("2d 4h");
    expect(toGo(NOW, NOW)).toBe("due");
  });

  it("never shows sixty seconds", () => {
    expect(span(59.2)).toBe("1m 00s");
    expect(span(3599.5)).toBe("1h 00m");
  });
});
