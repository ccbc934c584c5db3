/**
 * The server's events over fetch, since EventSource cannot send a key. Reads one stream, comes back
 * by itself when it breaks, with the id of the last event, and notices when it has gone quiet: the
 * server says something every 15 seconds.
 */
import { createParser } from "eventsource-parser";

export interface LiveEvent {
  type: string;
  timestamp: number;
  payload: Record<string, unknown>;
}

export interface Listening {
  onOpen(): void;
  onEvent(event: LiveEvent): void;
  /** It broke, or never came about; `status` when the server refused. */
  onLost(status: number | undefined, why: string): void;
}

export interface Ways {
  fetch: typeof fetch;
  headers: () => Record<string, string>;
}

const QUIET_MS = 40_000;
const RETRY_MIN_MS = 500;
const RETRY_MAX_MS = 5_000;

/** Until `signal` ends it. */
export async function listen(on: Listening, ways: Ways, signal: AbortSignal): Promise<void> {
  let last: string | undefined;
  let failures = 0;
  while (!signal.aborted) {
    const quiet = new AbortController();
    let timer = setTimeout(() => quiet.abort(), QUIET_MS);
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => quiet.abort(), QUIET_MS);
    };
    let status: number | undefined;
    let why = "the connection ended";
    try {
      const response = await ways.fetch("/events", {
        headers: { ...ways.headers(), ...(last === undefined ? {} : { "last-event-id": last }) },
        signal: AbortSignal.any([signal, quiet.signal]),
        cache: "no-store",
      });
      if (response.ok && response.body) {
        failures = 0;
        on.onOpen();
        await read(response.body, heard, (id, event) => {
          if (id !== undefined) last = id;
          on.onEvent(event);
        });
      } else {
        status = response.status;
        why = `the server answered ${status}`;
      }
    } catch {
      why = quiet.signal.aborted ? "the server has gone quiet" : "the server cannot be reached";
    } finally {
      clearTimeout(timer);
    }
    if (signal.aborted) return;
    on.onLost(status, why);
    await pause(Math.min(RETRY_MAX_MS, RETRY_MIN_MS * 2 ** Math.min(failures++, 6)), signal);
  }
}

async function read(
  body: ReadableStream<Uint8Array>,
  heard: () => void,
  tell: (id: string | undefined, event: LiveEvent) => void,
): Promise<void> {
  const parser = createParser({
    onEvent: ({ id, data }) => {
      const event = parsed(data);
      if (event) tell(id, event);
    },
  });
  const reader = body.getReader();
  const decoder = new TextDecoder();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    heard();
    parser.feed(decoder.decode(value, { stream: true }));
  }
}

function parsed(data: string): LiveEvent | undefined {
  try {
    const said = JSON.parse(data) as LiveEvent;
    return { ...said, payload: said.payload ?? {} };
  } catch {
    return undefined;
  }
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(end, ms);
    function end() {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    }
    signal.addEventListener("abort", end);
  });
}
