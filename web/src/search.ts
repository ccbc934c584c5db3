/**
 * One line of search. `key:`, `type:`, `code:`, `reason:`, `header:name=value` and
 * `field:path=value` must hold exactly; what is left is looked for in payload, headers, errors, key,
 * type and id. Values with spaces stand in double quotes.
 */
import type { Filters } from "./api/queries";
import type { DeadFilter, Json } from "./api/types";

const WORD = /(\w+):((?:[^\s"]|"[^"]*")+)|"([^"]*)"|(\S+)/g;
const EXACT = ["key", "type", "code", "reason"] as const;
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

export function parseSearch(line: string): Filters {
  const found: Filters = {};
  const rest: string[] = [];
  for (const [whole, name, value, quoted, bare] of line.matchAll(WORD)) {
    const exact = EXACT.find((each) => each === name);
    if (exact && value) found[exact] = unquoted(value);
    else if (name === "header" && value?.includes("=")) {
      (found.header ??= []).push(unquoted(value));
    } else if (name === "field" && value?.includes("=")) {
      (found.field ??= []).push(fieldOf(value));
    } else rest.push(quoted ?? bare ?? whole);
  }
  if (rest.length > 0) found.text = rest.join(" ");
  return found;
}

/** An id is not searched for, it is opened. */
export function isId(line: string): boolean {
  return UUID.test(line.trim());
}

export function isEmpty(filters: Filters): boolean {
  return Object.values(filters).every((value) => value === undefined);
}

/** The same choice for a redrive; null when it cannot say it, as free text is for looking only. */
export function deadFilter(filters: Filters): DeadFilter | null {
  if (filters.text !== undefined) return null;
  const { key, type, code, reason, fingerprint } = filters;
  const made: DeadFilter = { key, type, code, reason, fingerprint };
  if (filters.header) made.headers = Object.fromEntries(filters.header.map(pair));
  if (filters.field) {
    const fields = filters.field.map(pair).map(([path, text]) => [path, JSON.parse(text) as Json]);
    made.fields = Object.fromEntries(fields) as Record<string, Json>;
  }
  return made;
}

function fieldOf(text: string): string {
  const [path, value] = pair(text);
  return `${path}=${isJson(value) ? value : JSON.stringify(unquoted(value))}`;
}

function pair(text: string): [string, string] {
  const at = text.indexOf("=");
  return [text.slice(0, at), text.slice(at + 1)];
}

function unquoted(text: string): string {
  return text.replaceAll('"', "");
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
