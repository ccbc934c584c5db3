import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Gather } from "./throttle";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

describe("gathering", () => {
  it("does the first at once and the rest together, at the end of the interval", () => {
    const does = vi.fn();
    const gather = new Gather<string>(does, 300);
    gather.add(["a"]);
    gather.add(["b"]);
    gather.add(["b", "c"]);
    expect(does.mock.calls).toEqual([[["a"]]]);
    vi.advanceTimersByTime(300);
    expect(does.mock.calls).toEqual([[["a"]], [["b", "c"]]]);
  });

  it("keeps the distance also after a pause that was shorter than it", () => {
    const does = vi.fn();
    const gather = new Gather<string>(does, 300);
    gather.add(["a"]);
    vi.advanceTimersByTime(299);
    gather.add(["b"]);
    expect(does).toHaveBeenCalledTimes(1);
    vi.advanceTimersByTime(1);
    expect(does).toHaveBeenCalledTimes(2);
  });

  it("leaves no timer behind when there is nothing to do", () => {
    const gather = new Gather<string>(() => undefined, 300);
    gather.add([]);
    expect(vi.getTimerCount()).toBe(0);
    gather.add(["a"]);
    vi.advanceTimersByTime(300);
    expect(vi.getTimerCount()).toBe(0);
  });

  it("takes what is given back while it does something into the next round", () => {
    const seen: string[][] = [];
    const gather: Gather<string> = new Gather((items) => {
      seen.push(items);
      if (items.includes("a")) gather.add(["again"]);
    }, 300);
    gather.add(["a"]);
    vi.advanceTimersByTime(1000);
    expect(seen).toEqual([["a"], ["again"]]);
  });
});
