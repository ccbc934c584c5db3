/**
 * One timer for the whole page, on the whole seconds of the server's clock. It runs while somebody
 * listens, and only then: an empty table costs nothing.
 */
import { clock } from "./clock";

export class Ticker {
  private readonly listeners = new Set<() => void>();
  private timer: ReturnType<typeof setTimeout> | undefined;
  /** The time that everybody shows until the next tick, so that no two cells disagree. */
  private shown = 0;

  constructor(private readonly now: () => number) {}

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    if (this.timer === undefined) this.schedule();
    return () => {
      this.listeners.delete(listener);
      if (this.listeners.size === 0) this.stop();
    };
  };

  /** The time of the last tick; while nobody listens there is none, and it is the time itself. */
  readonly read = (): number => {
    if (this.timer === undefined) this.shown = this.now();
    return this.shown;
  };

  get isRunning(): boolean {
    return this.timer !== undefined;
  }

  private schedule(): void {
    this.shown = this.now();
    this.timer = setTimeout(this.tick, 1000 - (this.shown % 1000));
  }

  private readonly tick = (): void => {
    this.schedule();
    // A tick that is a moment late shows the second it was for: else a countdown would skip one.
    this.shown -= this.shown % 1000;
    for (const listener of [...this.listeners]) listener();
  };

  private stop(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
  }
}

export const ticker = new Ticker(() => clock.now());
