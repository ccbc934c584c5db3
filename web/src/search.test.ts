import { describe, expect, it } from "vitest";
import { deadFilter, isEmpty, isId, parseSearch } from "./search";

describe("a line of search", () => {
  it("takes words it knows, and looks for the rest as text", () => {
    expect(parseSearch("key:customer-7 no route type:order.placed")).toEqual({
      key: "customer-7",
      type: "order.placed",
      text: "no route",
    });
    expect(isEmpty(parseSearch("  "))).toBe(true);
  });

  it("keeps together what stands in quotes", () => {
    expect(parseSearch('code:"HTTP 503" "said 503"')).toEqual({
      code: "HTTP 503",
      text: "said 503",
    });
  });

  it("takes headers and fields as often as they come", () => {
    expect(parseSearch("header:tenant=eu header:a=b field:customer.id=7 field:name=Ann")).toEqual({
      header: ["tenant=eu", "a=b"],
      field: ["customer.id=7", 'name="Ann"'],
    });
    expect(parseSearch('field:id="7"')).toEqual({ field: ['id="7"'] });
    expect(parseSearch('field:name="Ann Lee"')).toEqual({ field: ['name="Ann Lee"'] });
  });

  it("leaves alone what only looks like a word of its own", () => {
    expect(parseSearch("https://stock.example/items")).toEqual({
      text: "https://stock.example/items",
    });
    expect(parseSearch("header:nothing")).toEqual({ text: "header:nothing" });
  });

  it("knows an id when it sees one", () => {
    expect(isId(" 01a1e5bb-0f45-7476-9035-d1cd58248f2c ")).toBe(true);
    expect(isId("01a1e5bb")).toBe(false);
  });
});

describe("the same choice for a redrive", () => {
  it("says exactly what the search said", () => {
    const filters = { ...parseSearch("code:NoRoute header:t=eu field:id=3"), fingerprint: "ab" };
    expect(JSON.parse(JSON.stringify(deadFilter(filters)))).toEqual({
      code: "NoRoute",
      fingerprint: "ab",
      headers: { t: "eu" },
      fields: { id: 3 },
    });
  });

  it("refuses what it cannot say, rather than to move more than was shown", () => {
    expect(deadFilter(parseSearch("code:NoRoute warehouse"))).toBeNull();
  });
});
