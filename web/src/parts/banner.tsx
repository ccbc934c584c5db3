import { useEffect, useReducer, type ReactNode } from "react";
import { clockTime, counted } from "../format";
import { useConnection } from "../live/hooks";

/** Around everything: what is shown while nobody answers is grey, readable, and says how old it is. */
export function Banner({ children }: { children: ReactNode }) {
  const { state, since, heard, why } = useConnection();
  const isLost = state === "lost";
  return (
    <div className={isLost ? "stale" : undefined}>
      {isLost ? (
        <div className="banner" role="alert">
          No connection since <Since at={since} />
          {heard ? `; showing data as of ${clockTime(heard)}` : ""}
          <span className="quiet"> ({why}; trying again)</span>
        </div>
      ) : null}
      {children}
    </div>
  );
}

/** By the browser's clock, as no other one can be heard. */
function Since({ at }: { at: number }) {
  const [, tick] = useReducer((n: number) => n + 1, 0);
  useEffect(() => {
    const timer = setInterval(tick, 1000);
    return () => clearInterval(timer);
  }, []);
  // eslint-disable-next-line react-hooks/purity -- the timer above makes it true again
  return counted(Math.max(0, Math.round((Date.now() - at) / 1000)), "second");
}
