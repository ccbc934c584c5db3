/**
 * Keeps what is on the screen true: hears events, puts the numbers they carry where they belong and
 * asks again for what they made old. Both happen together, at most once per 300 ms.
 */
import type { QueryClient } from "@tanstack/react-query";
import { authorization } from "../api/client";
import type { Stats } from "../api/types";
import { clock, type ServerClock } from "./clock";
import { connection, type ConnectionStore } from "./connection";
import { listen, type LiveEvent, type Ways } from "./events";
import { rates, type Rates } from "./rates";
import { type Subject, touched } from "./refresh";
import { Gather } from "./throttle";

export const REFRESH_MS = 300;
export const STATS_KEY = ["stats"];

/** A subject, one query that was under way, or numbers that wait to be shown. */
type Item = Subject | `query:${string}` | "numbers";

export class Live {
  private readonly gather = new Gather<Item>((items) => this.refresh(items), REFRESH_MS);
  private readonly numbers = new Map<string, Stats>();
  private ending: AbortController | undefined;

  constructor(
    private readonly queries: QueryClient,
    private readonly onRefused: () => void,
    private readonly time: ServerClock = clock,
    private readonly speeds: Rates = rates,
    private readonly link: ConnectionStore = connection,
  ) {}

  start(ways: Ways = { fetch: window.fetch.bind(window), headers: authorization }): void {
    this.stop();
    this.ending = new AbortController();
    void listen(
      {
        onOpen: () => {
          this.link.heard();
          this.link.become({ state: "live", why: "" });
          // What happened before the stream began is in no event.
          this.gather.add(["everything"]);
        },
        onEvent: (event) => this.hear(event),
        onLost: (status, why) => {
          this.link.become({ state: "lost", why });
          if (status === 401) this.onRefused();
        },
      },
      ways,
      this.ending.signal,
    );
  }

  stop(): void {
    this.ending?.abort();
    this.gather.stop();
  }

  hear(event: LiveEvent): void {
    this.link.heard();
    const items: Item[] = touched(event);
    if (event.type === "ping") this.time.hear(event.timestamp);
    if (event.type === "stats") items.push(...this.count(event));
    this.gather.add(items);
  }

  /** Somebody knows that something has changed: an action was done, a deadline has passed. */
  ask(...subjects: Subject[]): void {
    this.gather.add(subjects);
  }

  private count(event: LiveEvent): Item[] {
    const { now, ...rest } = event.payload;
    const asOf = performance.now();
    const stats = { ...(rest as unknown as Stats), at: event.timestamp, asOf };
    if (typeof stats.queue !== "string") return [];
    if (typeof now === "number") this.time.hear(now);
    this.speeds.hear(stats, event.timestamp);
    const before = this.numbers.get(stats.queue) ?? this.shown(stats.queue);
    this.numbers.set(stats.queue, stats);
    const items: Item[] = ["numbers"];
    if (before?.dead !== stats.dead) items.push(`dead:${stats.queue}`);
    if (before === undefined) items.push("queues");
    return items;
  }

  private shown(queue: string): Stats | undefined {
    return this.queries.getQueryData<Stats[]>(STATS_KEY)?.find((each) => each.queue === queue);
  }

  private refresh(items: Item[]): void {
    if (this.numbers.size > 0) this.show();
    const wanted = new Set(items);
    for (const query of this.queries.getQueryCache().getAll()) {
      const own = `query:${query.queryHash}` as const;
      if (!wanted.has(own) && !isAbout(query.meta?.subjects, wanted)) continue;
      if (query.state.fetchStatus === "fetching") {
        // Its answer may be from before the event. To cut it off would starve a slow server.
        this.gather.add([own]);
      } else {
        void this.queries.invalidateQueries({ queryKey: query.queryKey, exact: true });
      }
    }
  }

  private show(): void {
    const news = [...this.numbers.values()];
    this.numbers.clear();
    this.queries.setQueryData<Stats[]>(STATS_KEY, (shown) => {
      if (shown === undefined) return undefined;
      const known = new Set(shown.map((each) => each.queue));
      return [...newer(shown, news), ...news.filter((each) => !known.has(each.queue))];
    });
  }
}

/**
 * These numbers, or the others' of the same queue where those are newer. Answers and events overtake
 * each other: a slow answer would undo what an event has shown, and an event that waited for its turn
 * what an answer has.
 */
export function newer(these: Stats[], others: Stats[] = []): Stats[] {
  const byQueue = new Map(others.map((each) => [each.queue, each]));
  return these.map((each) => {
    const other = byQueue.get(each.queue);
    return other && (other.asOf ?? 0) >= (each.asOf ?? 0) ? other : each;
  });
}

function isAbout(subjects: Subject[] | undefined, wanted: Set<Item>): boolean {
  return wanted.has("everything") || (subjects?.some((each) => wanted.has(each)) ?? false);
}

declare module "@tanstack/react-query" {
  interface Register {
    queryMeta: { subjects?: Subject[] };
  }
}
