// @vitest-environment jsdom
import { describe, expect, it } from "vitest";
import { link, parseRoute, withQuery } from "./router";

describe("routes", () => {
  it("survive any name", () => {
    const name = "a/b@c?d#e %";
    expect(parseRoute(link("queues", name, "dead")).parts).toEqual(["queues", name, "dead"]);
    expect(parseRoute("#/queues/100%").parts).toEqual(["queues", "100%"]);
  });

  it("carry what is searched for", () => {
    const href = withQuery(link("queues", "orders"), { q: 'field:a="x y"&?', group: undefined });
    expect(parseRoute(href).query.get("q")).toBe('field:a="x y"&?');
    expect(parseRoute(href).query.has("group")).toBe(false);
  });
});
