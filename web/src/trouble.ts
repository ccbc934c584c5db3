/**
 * What deserves to be looked at first, and why, in words. Levels, not a smooth score: an order that
 * changes with every message could not be read.
 */
import type { Rate } from "./live/rates";
import type { Point, Stats } from "./api/types";
import { span } from "./live/countdown";
import { ago, count, counted } from "./format";

export const STUCK_S = 60;
export const OLD_S = 300;
const FRESH_DEATH_MS = 600_000;

export type Level = 0 | 1 | 2 | 3 | 4;

export interface Seen {
  stats: Stats;
  rate: Rate;
  points: Point[];
}

export interface Trouble {
  level: Level;
  reasons: string[];
}

export function trouble(seen: Seen, now: number): Trouble {
  const found = [stuck, dead, paused, old, growing]
    .map((look) => look(seen, now))
    .filter((one) => one !== undefined)
    .sort((a, b) => b.level - a.level);
  return {
    level: found[0]?.level ?? 0,
    reasons: found.map((one) => one.reason),
  };
}

/** Worst first; among equals the one with more of it, by order of magnitude; then by name. */
export function compare(a: Ranked, b: Ranked): number {
  return (
    b.trouble.level - a.trouble.level ||
    magnitude(b.stats) - magnitude(a.stats) ||
    a.stats.queue.localeCompare(b.stats.queue)
  );
}

export interface Ranked {
  stats: Stats;
  trouble: Trouble;
}

function magnitude({ ready, dead }: Stats): number {
  return Math.floor(Math.log10(1 + ready + dead));
}

interface One {
  level: Level;
  reason: string;
}

function stuck(seen: Seen, now: number): One | undefined {
  const { stats } = seen;
  const age = stats.oldest_age ?? 0;
  if (stats.paused || age < STUCK_S || isWorked(seen, now)) return undefined;
  return { level: 4, reason: `nobody leases, oldest waits ${span(age)}` };
}

function dead({ stats, points }: Seen, now: number): One | undefined {
  if (stats.dead === 0) return undefined;
  const last = points.findLast((point) => point.dead_rate > 0)?.at;
  const reason = `${count(stats.dead)} dead`;
  if (!last) return { level: 2, reason };
  return {
    level: now - last < FRESH_DEATH_MS ? 3 : 2,
    reason: `${reason}, last ${ago(last, now)}`,
  };
}

function paused({ stats }: Seen): One | undefined {
  if (!stats.paused) return undefined;
  const waiting = stats.ready + stats.delayed;
  if (waiting === 0) return { level: 1, reason: "paused" };
  return { level: 2, reason: `paused, ${counted(waiting, "waits", "wait")}` };
}

function old(seen: Seen, now: number): One | undefined {
  const { stats } = seen;
  const age = stats.oldest_age ?? 0;
  if (stats.paused || age < OLD_S || !isWorked(seen, now)) return undefined;
  return { level: 3, reason: `oldest waits ${span(age)}` };
}

function growing({ stats, points }: Seen): One | undefined {
  const first = points[0];
  const last = points.at(-1);
  if (!first || !last || stats.paused) return undefined;
  const more = stats.ready - first.ready;
  if (more < 100 || stats.ready < first.ready * 1.2) return undefined;
  const seconds = (last.at - first.at) / 1000;
  return { level: 2, reason: `growing, +${count(more)} in ${span(seconds)}` };
}

/** Somebody holds a message, or ended one within the last minute. */
function isWorked({ stats, rate, points }: Seen, now: number): boolean {
  if (stats.leased > 0 || rate.out > 0) return true;
  return points.some(
    (point) =>
      now - point.at < STUCK_S * 1000 &&
      (point.leased > 0 || point.out_rate > 0 || point.dead_rate > 0),
  );
}
