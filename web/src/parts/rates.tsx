import { perSecond } from "../format";
import { useTicking } from "../live/hooks";
import { rates } from "../live/rates";
import { ticker } from "../live/ticker";

/** In or out per second, over the last ten. It falls to zero by itself, so it ticks until then. */
export function RateText({ queue, way }: { queue: string; way: "in" | "out" }) {
  const isMoving = rates.rate(queue, ticker.read())[way] > 0;
  return <>{useTicking((now) => perSecond(rates.rate(queue, now)[way]), isMoving)}</>;
}
