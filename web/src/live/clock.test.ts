import { describe, expect, it } from "vitest";
import { ServerClock } from "./clock";

function at(start: number) {
  const local = { now: start };
  return { local, clock: new ServerClock(() => local.now) };
}

describe("the server's clock", () => {
  it("is the browser's until the server was heard", () => {
    expect(at(5_000).clock.now()).toBe(5_000);
  });

  it("corrects a browser that is an hour off, either way", () => {
    for (const off of [-3_600_000, 3_600_000]) {
      const { local, clock } = at(10_000_000);
      clock.hear(10_000_000 + off);
      local.now += 2_500;
      expect(clock.now()).toBe(10_002_500 + off);
    }
  });

  it("trusts the answer that was the least on its way", () => {
    const { local, clock } = at(1_000_000);
    clock.hear(1_000_000 - 20); // it took 20 ms
    local.now += 1_000;
    clock.hear(1_001_000 - 900); // a slow one makes nothing worse
    expect(clock.now()).toBe(1_001_000 - 20);
    local.now += 1_000;
    clock.hear(1_002_000 - 5); // a faster one makes it better
    expect(clock.now()).toBe(1_002_000 - 5);
  });

  it("forgets after a minute, as clocks drift", () => {
    const { local, clock } = at(1_000_000);
    clock.hear(1_000_000);
    local.now += 61_000;
    clock.hear(1_061_000 - 500);
    expect(clock.now()).toBe(1_061_000 - 500);
  });

  it("does not take what is no time", () => {
    const { clock } = at(1_000);
    clock.hear(Number.NaN);
    clock.hear(0);
    expect(clock.now()).toBe(1_000);
  });
});
