/**
 * The server's time, as well as the page can know it. Deadlines are the store's, so a countdown by
 * the operator's own clock would be wrong by as much as that clock is.
 *
 * Every answer with a time was on its way for a while, so it can only make the server look slower
 * than it is: of what was heard the largest offset is the nearest. It fades, as clocks drift.
 */
const KEEP_MS = 60_000;

export class ServerClock {
  private heard: { offset: number; at: number }[] = [];

  constructor(private readonly local: () => number = () => Date.now()) {}

  /** The server said that it is `serverNow`. */
  hear(serverNow: number): void {
    if (!Number.isFinite(serverNow) || serverNow <= 0) return;
    const at = this.local();
    const offset = serverNow - at;
    // Larger than what comes now and older: nobody asks for it again but while it is the nearest.
    this.heard = this.heard.filter(
      (each) => at - each.at < KEEP_MS && at >= each.at && each.offset > offset,
    );
    this.heard.push({ offset, at });
  }

  now(): number {
    return this.local() + (this.heard[0]?.offset ?? 0);
  }
}

export const clock = new ServerClock();
