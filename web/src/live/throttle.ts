/**
 * Gathers what is asked for and does it together, at most once per `interval`: the first at once,
 * the rest at the end of the interval. A thousand events a second cost three or four refreshes.
 */
export class Gather<T> {
  private waiting = new Set<T>();
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly does: (items: T[]) => void,
    private readonly intervalMs: number,
  ) {}

  add(items: Iterable<T>): void {
    for (const item of items) this.waiting.add(item);
    if (this.timer === undefined && this.waiting.size > 0) this.flush();
  }

  stop(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.waiting.clear();
  }

  private readonly flush = (): void => {
    this.timer = undefined;
    if (this.waiting.size === 0) return;
    const items = [...this.waiting];
    this.waiting.clear();
    this.timer = setTimeout(this.flush, this.intervalMs);
    this.does(items);
  };
}
