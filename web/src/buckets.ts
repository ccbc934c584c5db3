/** Counts over time on one axis for all groups, so that bars above each other mean the same time. */
export interface Bucket {
  at: number;
  count: number;
}

const BARS = 30;

/** From the first death of any group until now; neighbours are put together where there are many. */
export function axis(
  groups: Bucket[][],
  bucketMs: number,
  now: number,
): { from: number; step: number } {
  const first = Math.min(now, ...groups.flat().map((bucket) => bucket.at));
  const buckets = Math.max(1, Math.ceil((now - first + 1) / bucketMs));
  return { from: first, step: bucketMs * Math.ceil(buckets / BARS) };
}

export function spread(by: Bucket[], { from, step }: { from: number; step: number }, now: number) {
  const made: Bucket[] = [];
  for (let at = from; at <= now && made.length < BARS; at += step) made.push({ at, count: 0 });
  for (const { at, count } of by) {
    const bar = made[Math.min(made.length - 1, Math.floor((at - from) / step))];
    if (bar) bar.count += count;
  }
  return made;
}
