import { QueryClient, QueryObserver } from "@tanstack/react-query";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { stats as statsQuery } from "../api/queries";
import type { Stats } from "../api/types";
import { ServerClock } from "./clock";
import { ConnectionStore } from "./connection";
import type { LiveEvent } from "./events";
import { Live, STATS_KEY } from "./live";
import { Rates } from "./rates";
import type { Subject } from "./refresh";

beforeEach(() => void vi.useFakeTimers({ now: 1_000_000 }));
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

function page(subjects: Subject[], answerMs = 0) {
  const queries = new QueryClient({ defaultOptions: { queries: { retry: false } } });
  const speeds = new Rates();
  const refused = vi.fn();
  const link = new ConnectionStore();
  const live = new Live(queries, refused, new ServerClock(), speeds, link);
  const asked = vi.fn(
    () => new Promise((resolve) => setTimeout(() => resolve(Date.now()), answerMs)),
  );
  const shown = vi.fn();
  const observer = new QueryObserver(queries, {
    queryKey: ["what is looked at"],
    queryFn: asked,
    meta: { subjects },
  });
  observer.subscribe((result) => shown(result.data));
  return { queries, live, asked, shown, speeds, refused, link, observer };
}

const numbers = (queue: string, more: Partial<Stats> = {}): Stats => ({
  queue,
  ready: 0,
  delayed: 0,
  leased: 0,
  dead: 0,
  done: 0,
  oldest_age: null,
  paused: false,
  ...more,
});

const told = (type: string, payload: object): LiveEvent => ({
  type,
  timestamp: Date.now(),
  payload: payload as Record<string, unknown>,
});

/** The server's answer to what is asked next. */
function answer(stats: Stats[], afterMs: number): void {
  vi.stubGlobal("sessionStorage", { getItem: () => "a key" });
  const later = (resolve: (answer: Response) => void) =>
    void setTimeout(() => resolve(Response.json({ stats })), afterMs);
  vi.stubGlobal("fetch", () => new Promise(later));
}

const shownOf = (queries: QueryClient) =>
  queries.getQueryData<Stats[]>(STATS_KEY)?.map((each) => [each.queue, each.paused]);

describe("what is on the screen", () => {
  it("is asked for again when an event touches it, and only then", async () => {
    const { live, asked } = page(["queue:orders"]);
    await vi.advanceTimersByTimeAsync(1);
    expect(asked).toHaveBeenCalledTimes(1);
    live.hear(told("requeue", { queue: "mail" }));
    await vi.advanceTimersByTimeAsync(1000);
    expect(asked).toHaveBeenCalledTimes(1);
    live.hear(told("requeue", { queue: "orders" }));
    await vi.advanceTimersByTimeAsync(300);
    expect(asked).toHaveBeenCalledTimes(2);
  });

  it("costs one refresh per 300 ms, however many events there are", async () => {
    const { live, asked } = page(["queue:orders"]);
    await vi.advanceTimersByTimeAsync(1);
    asked.mockClear();
    for (let n = 0; n < 1000; n++) {
      live.hear(told("stats", numbers("orders", { done: n })));
      live.hear(told("requeue", { queue: "orders", count: 1 }));
      await vi.advanceTimersByTimeAsync(1);
    }
    expect(asked).toHaveBeenCalledTimes(4); // at 0, 300, 600 and 900 ms
    await vi.advanceTimersByTimeAsync(5000);
    expect(asked).toHaveBeenCalledTimes(5); // what came after 900 ms, and then nothing
  });

  it("does not starve a slow server, nor show its old answer for good", async () => {
    const { live, asked, shown } = page(["queue:orders"], 1000);
    await vi.advanceTimersByTimeAsync(500);
    live.hear(told("requeue", { queue: "orders" })); // its answer is under way
    await vi.advanceTimersByTimeAsync(600);
    expect(shown).toHaveBeenLastCalledWith(1_001_000);
    await vi.advanceTimersByTimeAsync(2000);
    expect(asked).toHaveBeenCalledTimes(2);
    expect(shown.mock.lastCall?.[0]).toBeGreaterThan(1_001_500);
  });

  it("takes numbers from the events themselves, the newest of each queue, in one go", async () => {
    const { live, queries } = page([]);
    queries.setQueryData(STATS_KEY, [numbers("orders"), numbers("mail", { ready: 5 })]);
    const written = vi.fn();
    queries.getQueryCache().subscribe((event) => {
      if (event.type === "updated" && event.query.queryKey === STATS_KEY) written();
    });
    await vi.advanceTimersByTimeAsync(1000);
    live.ask("topics"); // the interval has begun
    for (let ready = 1; ready <= 50; ready++) {
      live.hear(told("stats", numbers("orders", { ready })));
    }
    live.hear(told("stats", numbers("new", { ready: 1 })));
    await vi.advanceTimersByTimeAsync(300);
    expect(written.mock.calls.length).toBeLessThanOrEqual(2);
    const shown = queries.getQueryData<Stats[]>(STATS_KEY);
    expect(shown?.map((each) => [each.queue, each.ready])).toEqual([
      ["orders", 50],
      ["mail", 5],
      ["new", 1],
    ]);
  });

  it("keeps the numbers of an event when an answer asked for before it comes late", async () => {
    const { live, queries } = page([]);
    queries.setQueryData(STATS_KEY, [numbers("orders")]);
    answer([numbers("orders", { paused: false })], 1000);
    const fetched = queries.fetchQuery(statsQuery);
    await vi.advanceTimersByTimeAsync(500);
    live.hear(told("stats", numbers("orders", { paused: true })));
    expect(shownOf(queries)).toEqual([["orders", true]]);
    await vi.advanceTimersByTimeAsync(500);
    await fetched;
    expect(shownOf(queries)).toEqual([["orders", true]]);
  });

  it("keeps an answer when numbers that came before it was asked for are shown late", async () => {
    const { live, queries } = page([]);
    queries.setQueryData(STATS_KEY, [numbers("orders")]);
    live.ask("topics"); // the interval has begun
    live.hear(told("stats", numbers("orders", { paused: false })));
    await vi.advanceTimersByTimeAsync(10);
    answer([numbers("orders", { paused: true })], 10);
    const fetched = queries.fetchQuery(statsQuery);
    await vi.advanceTimersByTimeAsync(10);
    await fetched;
    await vi.advanceTimersByTimeAsync(300);
    expect(shownOf(queries)).toEqual([["orders", true]]);
  });

  it("looks at the dead letters again when their number has changed", async () => {
    const { live, asked, queries } = page(["dead:orders"]);
    queries.setQueryData(STATS_KEY, [numbers("orders", { dead: 2 })]);
    await vi.advanceTimersByTimeAsync(1);
    asked.mockClear();
    live.hear(told("stats", numbers("orders", { dead: 2, ready: 9 })));
    await vi.advanceTimersByTimeAsync(600);
    expect(asked).not.toHaveBeenCalled();
    live.hear(told("stats", numbers("orders", { dead: 3, ready: 9 })));
    await vi.advanceTimersByTimeAsync(600);
    expect(asked).toHaveBeenCalledTimes(1);
  });

  it("leaves out a queue that was deleted, though its last numbers came just before", async () => {
    const { live, queries } = page([]);
    const list = vi.fn(() => Promise.resolve([numbers("mail")]));
    queries.setQueryData(STATS_KEY, [numbers("orders"), numbers("mail")]);
    const observer = new QueryObserver(queries, {
      queryKey: STATS_KEY,
      queryFn: list,
      staleTime: Infinity,
      meta: { subjects: ["stats"] },
    });
    observer.subscribe(() => undefined);
    live.ask("actions"); // the interval has begun
    live.hear(told("stats", numbers("orders", { ready: 1 })));
    live.hear(told("gone", { queue: "orders" }));
    await vi.advanceTimersByTimeAsync(600);
    expect(queries.getQueryData<Stats[]>(STATS_KEY)?.map((each) => each.queue)).toEqual(["mail"]);
    expect(list).toHaveBeenCalledTimes(1);
  });
});
