// @vitest-environment jsdom
import { act, cleanup, render, screen } from "@testing-library/react";
import { Profiler } from "react";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { LiveContext } from "../live/hooks";
import type { Live } from "../live/live";
import { ticker } from "../live/ticker";
import { Countdown } from "./countdown";

const START = 1_800_000_000_000;

beforeEach(() => void vi.useFakeTimers({ now: START }));
afterEach(() => {
  cleanup();
  vi.useRealTimers();
});

function shown(deadlines: (number | undefined)[]) {
  const ask = vi.fn();
  const renders = vi.fn();
  const page = (rows: (number | undefined)[]) => (
    <LiveContext value={{ ask } as unknown as Live}>
      <Profiler id="rows" onRender={renders}>
        {rows.map((deadline, n) => (
          <Countdown key={n} deadline={deadline} about="queue:orders" />
        ))}
      </Profiler>
    </LiveContext>
  );
  const { rerender } = render(page(deadlines));
  return { ask, renders, show: (rows: (number | undefined)[]) => rerender(page(rows)) };
}

const texts = () => screen.queryAllByTestId("countdown").map((cell) => cell.textContent);
const pass = (ms: number) => act(() => vi.advanceTimersByTime(ms));

describe("cells of the processing table", () => {
  it("count down to Overdue, and then ask once how things are", () => {
    const { ask } = shown([START + 2_500, undefined]);
    expect(texts()).toEqual(["3s", "—"]);
    pass(1000);
    expect(texts()).toEqual(["2s", "—"]);
    pass(1000);
    expect(texts()).toEqual(["1s", "—"]);
    expect(ask).not.toHaveBeenCalled();
    pass(1000);
    expect(texts()).toEqual(["Overdue", "—"]);
    expect(screen.getByText("Overdue").className).toContain("red");
    pass(60_000);
    expect(ask.mock.calls).toEqual([["queue:orders"]]);
  });

  it("ask nothing when they were overdue from the start: the answer is fresh", () => {
    const { ask } = shown([START - 1]);
    expect(texts()).toEqual(["Overdue"]);
    pass(5000);
    expect(ask).not.toHaveBeenCalled();
  });

  it("stop the timer when none of them runs any more", () => {
    const { show } = shown([START + 1_000, undefined]);
    expect(ticker.isRunning).toBe(true);
    pass(1000);
    expect(ticker.isRunning).toBe(false);
    show([START + 30_000]);
    expect(ticker.isRunning).toBe(true);
    show([]);
    expect(ticker.isRunning).toBe(false);
    expect(vi.getTimerCount()).toBe(0);
  });

  it("start again when a lease was extended", () => {
    const { show } = shown([START + 1_000]);
    pass(1000);
    expect(texts()).toEqual(["Overdue"]);
    show([START + 6_000]);
    expect(texts()).toEqual(["5s"]);
    pass(1000);
    expect(texts()).toEqual(["4s"]);
  });

  it("are rendered together, once a second, however many they are", () => {
    const { renders } = shown(Array.from({ length: 1000 }, (_, n) => START + 60_000 + n));
    renders.mockClear();
    for (let second = 0; second < 5; second++) pass(1000);
    expect(renders).toHaveBeenCalledTimes(5);
  });
});
