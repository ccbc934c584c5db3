// Printed: python -m holdfast.wire.typescript > web/src/api/message.ts
// A field that has its default is left out by the server. Bytes are in base64.
import type { Json } from "./types";

export interface Backoff {
  base?: number;
  factor?: number;
  max?: number;
  jitter?: string;
}

export interface ErrorDoc {
  message: string;
  code: string;
  at: number;
  attempt: number;
  consumer?: string;
  handler?: string;
  traceback?: string;
}

export interface Message {
  id: string;
  queue: string;
  partition: number;
  priority: number;
  key?: string;
  type?: string;
  content_type: string;
  payload?: Json;
  body?: string;
  headers?: Record<string, string>;
  enqueued_at: number;
  available_at: number;
  attempts: number;
  ack_timeout?: number;
  max_attempts?: number;
  backoff?: Backoff;
  first_leased_at?: number;
  errors?: ErrorDoc[];
  handled?: Json;
  last_delay?: number;
  source?: string;
  dead_at?: number;
  reason?: string;
  redriven?: number;
  origin?: string;
  duplicate?: boolean;
}
