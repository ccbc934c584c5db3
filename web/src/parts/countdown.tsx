import { memo, useEffect, useRef } from "react";
import { countdown, isRunning, OVERDUE, toGo } from "../live/countdown";
import { useLive, useTicking } from "../live/hooks";
import { ticker } from "../live/ticker";
import type { Subject } from "../live/refresh";

/**
 * Time left of a lease. At zero it asks once how things are: a lease may have been extended, which
 * no event tells. Moving the message is the sweeper's work.
 */
export const Countdown = memo(function Countdown(props: {
  deadline: number | undefined;
  about: Subject;
}) {
  const { deadline, about } = props;
  const live = useLive();
  const text = useTicking((now) => countdown(deadline, now), isRunning(deadline, ticker.read()));
  const before = useRef(text);
  useEffect(() => {
    if (text === OVERDUE && before.current !== OVERDUE) live.ask(about);
    before.current = text;
  }, [text, live, about]);
  return (
    <span className={text === OVERDUE ? "red strong" : undefined} data-testid="countdown">
      {text}
    </span>
  );
});

/** Time until a delayed message is due. */
export const ToGo = memo(function ToGo({ at }: { at: number }) {
  const text = useTicking((now) => toGo(at, now), at > ticker.read());
  return <span data-testid="to-go">{text}</span>;
});
