/** Numbers and times as people read them. Pure. */
import { span } from "./live/countdown";

const whole = new Intl.NumberFormat("en-US");

export function count(n: number): string {
  return whole.format(n);
}

export function counted(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

export function perSecond(rate: number): string {
  if (rate === 0) return "0";
  if (rate < 0.1) return "<0.1";
  return rate < 10 ? rate.toFixed(1) : count(Math.round(rate));
}

/** "just now", "12s ago", "3m 05s ago". */
export function ago(at: number, now: number): string {
  const seconds = Math.floor((now - at) / 1000);
  return seconds < 2 ? "just now" : `${span(seconds)} ago`;
}

export function clockTime(at: number): string {
  return new Date(at).toLocaleTimeString("en-GB");
}

/** The day only where it is not today. */
export function when(at: number, now: number): string {
  const date = new Date(at);
  const time = date.toLocaleTimeString("en-GB");
  return new Date(now).toDateString() === date.toDateString() ? time : `${day(date)} ${time}`;
}

export function exactly(at: number): string {
  const date = new Date(at);
  const ms = String(date.getMilliseconds()).padStart(3, "0");
  return `${day(date)} ${date.toLocaleTimeString("en-GB")}.${ms}`;
}

export function shortId(id: string): string {
  return id.length > 13 ? `${id.slice(0, 8)}…${id.slice(-4)}` : id;
}

export function duration(seconds: number): string {
  if (seconds < 0.001) return "0 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 60 ? `${seconds.toFixed(1)} s` : span(seconds);
}

function day(date: Date): string {
  return date.toLocaleDateString("en-GB", { day: "2-digit", month: "short", year: "numeric" });
}
