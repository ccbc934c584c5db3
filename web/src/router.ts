/** Routes are in the hash, so the server needs no path but /. Filters are in them too: links say it all. */
import { useSyncExternalStore } from "react";

export interface Route {
  parts: string[];
  query: URLSearchParams;
}

export function parseRoute(hash: string): Route {
  const [way = "", query = ""] = hash.replace(/^#/, "").split("?", 2);
  const parts = way.split("/").filter(Boolean).map(decoded);
  return { parts, query: new URLSearchParams(query) };
}

/** link("queues", "orders", "dead") is "#/queues/orders/dead". */
export function link(...parts: string[]): string {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

export function withQuery(href: string, query: Record<string, string | undefined>): string {
  const given = Object.entries(query).filter((pair): pair is [string, string] => Boolean(pair[1]));
  return given.length === 0 ? href : `${href}?${new URLSearchParams(given).toString()}`;
}

export function go(href: string, replace = false): void {
  if (replace) {
    window.history.replaceState(null, "", href);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    window.location.hash = href;
  }
}

export function useHash(): string {
  return useSyncExternalStore(subscribe, () => window.location.hash);
}

function subscribe(listener: () => void): () => void {
  window.addEventListener("hashchange", listener);
  return () => window.removeEventListener("hashchange", listener);
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
