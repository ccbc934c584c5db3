/**
 * In and out per second, from the numbers that the server pushes. A queue that says nothing has not
 * changed, so between two samples the earlier one holds, and a rate falls to zero by itself.
 */
import type { Point, Stats } from "../api/types";

const KEEP_MS = 330_000;
export const WINDOW_MS = 10_000;

interface Sample {
  at: number;
  /** All that ever came in, as far as it is still counted: purges and trimmed logs take from it. */
  put: number;
  done: number;
}

export interface Rate {
  in: number;
  out: number;
}

export class Rates {
  private readonly samples = new Map<string, Sample[]>();

  hear(stats: Stats, at: number): void {
    const put = stats.ready + stats.delayed + stats.leased + stats.dead + stats.done;
    const kept = this.samples.get(stats.queue) ?? [];
    while (kept.length > 1 && (kept[1]?.at ?? at) < at - KEEP_MS) kept.shift();
    if (kept.length > 0 && (kept.at(-1)?.at ?? 0) >= at) kept.pop();
    kept.push({ at, put, done: stats.done });
    this.samples.set(stats.queue, kept);
  }

  rate(queue: string, now: number, windowMs = WINDOW_MS): Rate {
    const kept = this.samples.get(queue);
    if (!kept?.[0]) return { in: 0, out: 0 };
    // Nothing is known from before the first sample: a page just opened looks back less far.
    const from = Math.min(Math.max(now - windowMs, kept[0].at), now - 1000);
    return between(kept, from, now);
  }

  /** Points of the server's recorder, and what was heard since the last of them. */
  points(queue: string, recorded: Point[], stepMs: number, now: number, most: number): Rate[] {
    const made: Rate[] = recorded.map((point) => ({ in: point.in_rate, out: point.out_rate }));
    const kept = this.samples.get(queue) ?? [];
    let from = Math.max(recorded.at(-1)?.at ?? kept[0]?.at ?? now, now - most * stepMs);
    while (from + stepMs <= now) {
      made.push(between(kept, from, from + stepMs));
      from += stepMs;
    }
    return made.slice(-most);
  }
}

function between(kept: Sample[], from: number, to: number): Rate {
  const first = at(kept, from);
  const last = at(kept, to);
  if (!first || !last || to <= from) return { in: 0, out: 0 };
  const seconds = (to - from) / 1000;
  return {
    in: Math.max(0, last.put - first.put) / seconds,
    out: Math.max(0, last.done - first.done) / seconds,
  };
}

/** What held at a time; before the first sample nothing is known, and the first one is taken. */
function at(kept: Sample[], time: number): Sample | undefined {
  let found = kept[0];
  for (const sample of kept) {
    if (sample.at > time) break;
    found = sample;
  }
  return found;
}

export const rates = new Rates();
