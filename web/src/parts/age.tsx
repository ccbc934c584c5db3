import { ago, exactly } from "../format";
import { span } from "../live/countdown";
import { useTicking } from "../live/hooks";

/** How old the oldest is: it was so old when it was counted, and grows since. */
export function Age({ seconds, at }: { seconds: number | null; at: number | undefined }) {
  const text = useTicking(
    (now) => (seconds === null ? "—" : span(seconds + Math.max(0, now - (at ?? now)) / 1000)),
    seconds !== null,
  );
  return <>{text}</>;
}

export function Ago({ at }: { at: number }) {
  const text = useTicking((now) => ago(at, now), true);
  return (
    <time dateTime={new Date(at).toISOString()} title={exactly(at)}>
      {text}
    </time>
  );
}
