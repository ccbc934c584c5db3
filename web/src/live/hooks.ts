/** The live parts as React sees them: each cell renders by itself, and only when its text changes. */
import { createContext, useCallback, useContext, useSyncExternalStore } from "react";
import { connection, type Connection } from "./connection";
import type { Live } from "./live";
import { ticker } from "./ticker";

export const LiveContext = createContext<Live | null>(null);

export function useLive(): Live {
  const live = useContext(LiveContext);
  if (live === null) throw new Error("there is no LiveContext around this");
  return live;
}

export function useConnection(): Connection {
  return useSyncExternalStore(connection.subscribe, connection.read);
}

/** A text made from the server's time, each second anew while `isRunning`. */
export function useTicking(text: (now: number) => string, isRunning: boolean): string {
  const subscribe = useCallback(
    (listener: () => void) => (isRunning ? ticker.subscribe(listener) : nothing),
    [isRunning],
  );
  return useSyncExternalStore(subscribe, () => text(ticker.read()));
}

function nothing(): void {
  // There is nothing to end.
}
