/** Whether the page is live, and if not since when: a small store that the banner reads. */
export interface Connection {
  state: "connecting" | "live" | "lost";
  /** Local time at which it became so. */
  since: number;
  /** Local time of the last thing heard from the server. */
  heard: number | undefined;
  why: string;
}

type Change = Partial<Connection> & { state: Connection["state"] };

export class ConnectionStore {
  private value: Connection = { state: "connecting", since: Date.now(), heard: undefined, why: "" };
  private readonly listeners = new Set<() => void>();

  readonly read = (): Connection => this.value;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  /** Heard from the server; told to nobody, as it happens all the time. */
  heard(): void {
    this.value.heard = Date.now();
  }

  become(change: Change): void {
    const same = change.state === this.value.state;
    if (same && (change.why ?? this.value.why) === this.value.why) return;
    const since = same ? this.value.since : Date.now();
    this.value = { ...this.value, ...change, since };
    for (const listener of [...this.listeners]) listener();
  }
}

export const connection = new ConnectionStore();
