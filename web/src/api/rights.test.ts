import { describe, expect, it } from "vitest";
import { covers, may, mayWhole } from "./rights";
import type { Identity, Right } from "./types";

const key = (rights: Right[], ...queues: string[]): Identity => ({
  id: "k1",
  name: "night",
  rights,
  queues,
  auth: true,
});

describe("patterns of a key", () => {
  // The table of docs/keys.md.
  it.each([
    ["orders", ["orders", "orders.dlq"], ["orders.eu", "orders@mail", "orders.eu.dlq"]],
    ["orders*", ["orders", "orders.eu", "orders@mail", "orders.eu.dlq"], ["my.orders"]],
    ["orders.*", ["orders.eu", "orders.eu.dlq"], ["orders", "orders.dlq"]],
    ["orders@*", ["orders@mail", "orders@mail.dlq"], ["orders", "orders.dlq"]],
    ["*.dlq", ["orders.dlq"], ["orders"]],
    ["*", ["orders", "orders.dlq", "a@b"], []],
  ])("%s", (pattern, covered, others) => {
    for (const name of covered) expect([name, covers(pattern, name)]).toEqual([name, true]);
    for (const name of others) expect([name, covers(pattern, name)]).toEqual([name, false]);
  });

  it("have no other special characters", () => {
    expect(covers("a.b", "axb")).toBe(false);
    expect(covers("a+(b", "a+(b")).toBe(true);
  });
});

describe("buttons", () => {
  it("are for those who may, on the queues where they may", () => {
    const who = key(["admin"], "orders*");
    expect(may(who, "admin", "orders.dlq")).toBe(true);
    expect(may(who, "admin", "mail")).toBe(false);
    expect(may(key(["read", "consume"], "*"), "admin", "orders")).toBe(false);
    expect(may(undefined, "read", "orders")).toBe(false);
  });

  it("of the whole store take a key for all of it", () => {
    expect(mayWhole(key(["admin"], "*"), "read")).toBe(true);
    expect(mayWhole(key(["admin"], "orders*"), "read")).toBe(false);
  });
});
