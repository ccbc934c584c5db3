/** One way to the server. Every answer is a document, or an ApiError that says why not. */
import { readKey } from "./key";
import type { Problem } from "./types";

const TIMEOUT_MS = 30_000;

export class ApiError extends Error {
  constructor(readonly problem: Problem) {
    super(problem.detail ?? problem.title ?? `the server answered ${problem.status}`);
    this.name = "ApiError";
  }

  get status(): number {
    return this.problem.status;
  }
}

/** No answer at all: the server is gone, or the way to it. */
export class Unreachable extends Error {
  constructor() {
    super("The server cannot be reached.");
    this.name = "Unreachable";
  }
}

export type Query = Record<string, string | number | boolean | string[] | null | undefined>;

export function authorization(): Record<string, string> {
  const key = readKey();
  return key === null ? {} : { authorization: `Bearer ${key}` };
}

export function url(path: string, query: Query = {}): string {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === null || value === undefined || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) given.append(name, String(one));
  }
  const text = given.toString();
  return text === "" ? path : `${path}?${text}`;
}

/** A path below /v1; parts of it are escaped: path`/queues/${name}`. */
export function path(strings: TemplateStringsArray, ...parts: string[]): string {
  return (
    "/v1" + strings.reduce((made, text, n) => made + encodeURIComponent(parts[n - 1] ?? "") + text)
  );
}

export function get<T>(at: string, query?: Query, signal?: AbortSignal): Promise<T> {
  return call<T>("GET", url(at, query), undefined, signal);
}

export function post<T>(at: string, body: unknown = {}): Promise<T> {
  return call<T>("POST", at, body);
}

export function remove(at: string, query?: Query): Promise<unknown> {
  return call("DELETE", url(at, query));
}

async function call<T>(
  method: string,
  at: string,
  body?: unknown,
  signal?: AbortSignal,
): Promise<T> {
  const headers: Record<string, string> = authorization();
  if (body !== undefined) headers["content-type"] = "application/json";
  const limit = AbortSignal.timeout(TIMEOUT_MS);
  let response: Response;
  try {
    response = await fetch(at, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Unreachable();
  }
  if (!response.ok) throw new ApiError(await problemOf(response));
  return (await response.json()) as T;
}

/** A proxy on the way may answer with a page of its own. */
export async function problemOf(response: Response): Promise<Problem> {
  try {
    const said = (await response.json()) as Problem;
    return { ...said, status: response.status };
  } catch {
    return { status: response.status, title: response.statusText };
  }
}
