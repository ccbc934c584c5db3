import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { listen, type LiveEvent } from "./events";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

/** A server that can be cut off; it keeps what it was asked with. */
function server() {
  const asked: Record<string, string>[] = [];
  let stream: ReadableStreamDefaultController<Uint8Array> | undefined;
  let answer: () => Response = () =>
    new Response(new ReadableStream<Uint8Array>({ start: (made) => void (stream = made) }));
  const fetch = ((_: string, init: RequestInit) => {
    asked.push(init.headers as Record<string, string>);
    init.signal?.addEventListener("abort", () => stream?.error(new Error("aborted")));
    try {
      return Promise.resolve(answer());
    } catch (error) {
      return Promise.reject(error as Error);
    }
  }) as typeof globalThis.fetch;
  return {
    asked,
    fetch,
    say: (text: string) => stream?.enqueue(new TextEncoder().encode(text)),
    cut: () => stream?.error(new Error("cut")),
    answers: (other: () => Response) => void (answer = other),
  };
}

function watch(from: ReturnType<typeof server>) {
  const ending = new AbortController();
  const events: LiveEvent[] = [];
  const on = { onOpen: vi.fn(), onEvent: (e: LiveEvent) => void events.push(e), onLost: vi.fn() };
  const ways = { fetch: from.fetch, headers: () => ({ authorization: "Bearer hf_1" }) };
  void listen(on, ways, ending.signal);
  return { ...on, events, end: () => ending.abort() };
}

const ping = (id: number) =>
  `id: ${id}\nevent: ping\ndata: {"type":"ping","timestamp":7,"payload":{}}\n\n`;

describe("the stream of events", () => {
  it("shows the key, and reads events however they are cut into pieces", async () => {
    const from = server();
    const { events, end } = watch(from);
    await vi.advanceTimersByTimeAsync(0);
    expect(from.asked[0]).toEqual({ authorization: "Bearer hf_1" });
    for (const piece of ping(4).match(/.{1,7}/gs) ?? []) from.say(piece);
    await vi.advanceTimersByTimeAsync(0);
    expect(events).toEqual([{ type: "ping", timestamp: 7, payload: {} }]);
    end();
  });

  it("comes back by itself, and goes on behind the last event that it saw", async () => {
    const from = server();
    const { onOpen, onLost, end } = watch(from);
    await vi.advanceTimersByTimeAsync(0);
    from.say(ping(41) + ping(42));
    await vi.advanceTimersByTimeAsync(0);
    from.cut();
    await vi.advanceTimersByTimeAsync(0);
    expect(onLost).toHaveBeenCalledTimes(1);
    await vi.advanceTimersByTimeAsync(500);
    expect(onOpen).toHaveBeenCalledTimes(2);
    expect(from.asked[1]).toMatchObject({ "last-event-id": "42" });
    end();
  });

  it("tries again for ever, more and more seldom, but at least every five seconds", async () => {
    const from = server();
    from.answers(() => {
      throw new TypeError("refused");
    });
    const { onLost, end } = watch(from);
    await vi.advanceTimersByTimeAsync(60_000);
    const tried = onLost.mock.calls.length;
    expect(tried).toBeGreaterThan(12);
    expect(tried).toBeLessThan(20);
    end();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(onLost).toHaveBeenCalledTimes(tried);
  });

  it("says that the key was refused", async () => {
    const from = server();
    from.answers(() => new Response("{}", { status: 401 }));
    const { onLost, end } = watch(from);
    await vi.advanceTimersByTimeAsync(0);
    expect(onLost).toHaveBeenCalledWith(401, "the server answered 401");
    end();
  });

  it("does not wait for a server that has gone quiet", async () => {
    const from = server();
    const { onLost, end } = watch(from);
    await vi.advanceTimersByTimeAsync(30_000);
    from.say(ping(1));
    await vi.advanceTimersByTimeAsync(39_000);
    expect(onLost).not.toHaveBeenCalled();
    await vi.advanceTimersByTimeAsync(2_000);
    expect(onLost).toHaveBeenCalledWith(undefined, "the server has gone quiet");
    end();
  });
});
