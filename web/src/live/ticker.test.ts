import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Ticker } from "./ticker";

beforeEach(() => void vi.useFakeTimers({ now: 1_000_400 }));
afterEach(() => void vi.useRealTimers());

describe("the one timer", () => {
  it("does not run while nobody listens", () => {
    const ticker = new Ticker(Date.now);
    expect(vi.getTimerCount()).toBe(0);
    const leave = ticker.subscribe(() => undefined);
    expect(ticker.isRunning).toBe(true);
    leave();
    expect(ticker.isRunning).toBe(false);
    expect(vi.getTimerCount()).toBe(0);
  });

  it("is one timer for a thousand, and tells each once a second", () => {
    const ticker = new Ticker(Date.now);
    const heard = vi.fn();
    for (let n = 0; n < 1000; n++) ticker.subscribe(() => heard());
    expect(vi.getTimerCount()).toBe(1);
    vi.advanceTimersByTime(600); // to the whole second
    expect(heard).toHaveBeenCalledTimes(1000);
    vi.advanceTimersByTime(3000);
    expect(heard).toHaveBeenCalledTimes(4000);
    expect(vi.getTimerCount()).toBe(1);
  });

  it("shows everybody the same time between two ticks", () => {
    const ticker = new Ticker(Date.now);
    ticker.subscribe(() => undefined);
    const shown = ticker.read();
    vi.advanceTimersByTime(599);
    expect(ticker.read()).toBe(shown);
    vi.advanceTimersByTime(1);
    expect(ticker.read()).toBe(1_001_000);
  });

  it("shows the second it was for when it comes late", () => {
    let late = 0;
    const ticker = new Ticker(() => Date.now() + late);
    const seen: number[] = [];
    ticker.subscribe(() => seen.push(ticker.read()));
    for (const by of [30, 120, 120]) {
      late = by;
      vi.advanceTimersToNextTimer();
    }
    expect(seen).toEqual([1_001_000, 1_002_000, 1_003_000]);
  });

  it("goes on for the others when one leaves in the middle of a tick", () => {
    const ticker = new Ticker(Date.now);
    const heard = vi.fn();
    const leave = ticker.subscribe(() => leave());
    ticker.subscribe(heard);
    vi.advanceTimersByTime(1600);
    expect(heard).toHaveBeenCalledTimes(2);
  });
});
