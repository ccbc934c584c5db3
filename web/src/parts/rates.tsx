import { perSecond } from "../format";
import { useTicking } from "../live/hooks";
import { rates } from "../live/rates";

/** In or out per second, over the last ten. It falls to zero by itself, so it ticks. */
export function RateText({ queue, way }: { queue: string; way: "in" | "out" }) {
  return <>{useTicking((now) => perSecond(rates.rate(queue, now)[way]), true)}</>;
}
