/** What a countdown says. It only shows: what happens to a message is the server's business. */
export const NO_START = "—";
export const OVERDUE = "Overdue";

/** Whole seconds to go, rounded up, by the server's clock. */
export function countdown(deadline: number | null | undefined, now: number): string {
  if (deadline === null || deadline === undefined) return NO_START;
  if (deadline <= now) return OVERDUE;
  return `${Math.ceil((deadline - now) / 1000)}s`;
}

/** Whether what it says will still change: only then the timer has to run for it. */
export function isRunning(deadline: number | null | undefined, now: number): boolean {
  return deadline !== null && deadline !== undefined && deadline > now;
}

/** How long until a delayed message is due: "4s", "12m 05s", "3h 20m", "2d 4h"; "due" at zero. */
export function toGo(at: number, now: number): string {
  if (at <= now) return "due";
  return span((at - now) / 1000);
}

/** A length of time, to two units; seconds are rounded up so that it ends with what it waits for. */
export function span(seconds: number): string {
  const whole = Math.max(0, Math.ceil(seconds));
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${pad(whole % 60)}s`;
  if (whole < 86_400)
    return `${Math.floor(whole / 3600)}h ${pad(Math.floor((whole % 3600) / 60))}m`;
  return `${Math.floor(whole / 86_400)}d ${Math.floor((whole % 86_400) / 3600)}h`;
}

function pad(n: number): string {
  return String(n).padStart(2, "0");
}
