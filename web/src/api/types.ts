/**
 * The documents of the server, as far as the page reads them: src/holdfast/wire/shapes in
 * TypeScript. A field that has its default is left out by the server, hence the question marks.
 * Times are milliseconds since 1970 by the store's clock, lengths of time are seconds.
 */
import type { Backoff, Message } from "./message";

export type { ErrorDoc, Message } from "./message";

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

export type Right = "read" | "produce" | "consume" | "admin";
export type BrowseState = "ready" | "delayed" | "leased" | "log";

export interface Identity {
  id?: string | null;
  name?: string | null;
  rights: Right[];
  queues: string[];
  auth: boolean;
}

export interface Stats {
  queue: string;
  ready: number;
  delayed: number;
  leased: number;
  dead: number;
  done: number;
  oldest_age: number | null;
  paused: boolean;
  /** When it was counted, by the server's clock; the page adds it. */
  at?: number;
  /** No older than this, by performance.now(): when it was asked for, or arrived in an event. */
  asOf?: number;
}

export interface Policy {
  ack_timeout?: number;
  max_attempts?: number;
  backoff?: Backoff;
  overdue_backoff?: boolean;
  exhausted?: string;
  log?: boolean;
  retention?: number;
  retention_count?: number;
  payload_max?: number;
  on_failure?: string;
  on_misfit?: string;
  traceback_max?: number;
  duplicate_window?: number;
}

export interface QueueDoc {
  queue: string;
  partitions: number;
  total_partitions: number;
  ordered: boolean;
  paused: boolean;
  created_at: number;
  policy: Policy;
  in_force: Policy;
}

export interface Finished {
  message: Message;
  status: string;
  finished_at: number;
  first_leased_at?: number;
  last_leased_at?: number;
  consumer?: string;
  result?: Json;
}

export interface Entry {
  message: Message;
  deadline?: number;
  leased_at?: number;
  owner?: string;
  finished?: Finished;
}

export interface Page {
  entries: Entry[];
  after?: string | null;
  looked?: number;
  now?: number;
}

export interface Moment {
  at: number;
  what: string;
  consumer?: string;
  attempt?: number;
  detail?: string;
  traceback?: string;
}

export interface Detail {
  message: Message;
  state: "ready" | "delayed" | "leased" | "dead" | "done";
  deadline?: number;
  owner?: string;
  finished?: Finished;
  timeline?: Moment[];
  now?: number;
}

export interface FailureGroup {
  fingerprint: string;
  reason?: string;
  code?: string;
  error?: string;
  handler?: string;
  count: number;
  first_dead_at?: number;
  last_dead_at?: number;
  examples?: string[];
  by_time?: { at: number; count: number }[];
}

export interface Failures {
  dlq: string;
  groups: FailureGroup[];
  looked: number;
  total: number;
  bucket_ms: number;
}

export interface DeadFilter {
  reason?: string;
  code?: string;
  key?: string;
  type?: string;
  fingerprint?: string;
  headers?: Record<string, string>;
  fields?: Record<string, Json>;
}

export interface RedriveAsk {
  dlq_queue: string;
  ids?: string[];
  where?: DeadFilter;
  rate?: number;
  to?: string;
  payload?: Json;
  merge?: Json;
  dry_run?: boolean;
}

export interface Redriven {
  dlq: string;
  redriven: number;
  looked: number;
  missing: number;
  skipped: number;
  to: string | null;
}

export interface Redrive {
  id: string;
  dlq: string;
  state: "running" | "done" | "cancelled" | "failed";
  redriven: number;
  looked: number;
  skipped: number;
  missing: number;
  total: number;
  to: string | null;
  created_at: number;
  updated_at: number;
  finished_at: number | null;
  error: string | null;
}

export interface Partition {
  partition: number;
  ready: number;
  delayed: number;
  leased: number;
  lag: number;
  oldest_age: number | null;
  owner: string | null;
  epoch: number;
}

export interface Consumer {
  owner: string;
  leases?: number;
  oldest_leased_at?: number;
  next_deadline?: number;
  partitions?: number[];
}

export interface Topic {
  topic: string;
  groups: Record<string, Stats>;
  filling: string[];
  retained: number;
  oldest_age: number | null;
  log: boolean;
  retention: number;
}

export interface Point {
  at: number;
  ready: number;
  delayed: number;
  leased: number;
  dead: number;
  in_rate: number;
  out_rate: number;
  dead_rate: number;
}

/** How long messages waited and were worked on, of those finished around `at`. */
export interface SpanPoint {
  at: number;
  count: number;
  wait_p50: number | null;
  wait_p95: number | null;
  handle_p50: number | null;
  handle_p95: number | null;
}

export interface QueueHistory {
  queue: string;
  points: Point[];
  spans: SpanPoint[];
}

export interface History {
  step_ms: number;
  now: number;
  queues: QueueHistory[];
}

export interface Action {
  id: string | number;
  at: number;
  who?: string | null;
  key_id?: string | null;
  what: string;
  queue?: string | null;
  count?: number | null;
  detail?: string | null;
}

export interface Settings {
  version: string;
  store: string;
  auth: boolean;
  policy: Policy;
  limits: Record<string, number>;
  now: number;
}

export interface Batch {
  batch: number;
  rows: number;
  done: number;
  retried: number;
  dead: number;
  ms: number;
  settled_at: number;
}

/** A Spark query that reads a queue. */
export interface Pipeline {
  query: string;
  name: string;
  queue: string;
  state: string;
  batch: number;
  held: number;
  sealed: boolean;
  since: number | null;
  backlog: number | null;
  done: number;
  retried: number;
  dead: number;
  started_at: number | null;
  seen_at: number | null;
  settled_at: number | null;
  batch_ms: number | null;
  history: Batch[];
}

export interface Report {
  id: string;
  made_at: number;
  title: string;
  lake?: string | null;
  rows?: number | null;
  summary?: Json;
  html?: string;
}

/** RFC 9457, as the server writes it. */
export interface Problem {
  title?: string;
  status: number;
  detail?: string;
  code?: string;
  field?: string;
}
