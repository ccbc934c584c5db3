import { memo } from "react";
import type { Rate } from "../live/rates";

const WIDTH = 120;
const HEIGHT = 28;

/** In as an area, out as a line: where the area stands above the line, a queue grows. */
export const Sparkline = memo(
  function Sparkline({ points, most }: { points: Rate[]; most: number }) {
    const top = Math.max(0.1, ...points.map((point) => Math.max(point.in, point.out)));
    const x = (n: number) => WIDTH - (points.length - 1 - n) * (WIDTH / (most - 1));
    const y = (value: number) => HEIGHT - 1 - (value / top) * (HEIGHT - 3);
    const line = (of: (point: Rate) => number) =>
      points.map((point, n) => `${x(n).toFixed(1)},${y(of(point)).toFixed(1)}`).join(" ");
    return (
      <svg
        className="spark"
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        height={HEIGHT}
        aria-hidden="true"
      >
        {points.length > 1 ? (
          <>
            <polygon
              className="in"
              points={`${x(0)},${HEIGHT} ${line((p) => p.in)} ${WIDTH},${HEIGHT}`}
            />
            <polyline className="out" points={line((p) => p.out)} />
          </>
        ) : null}
      </svg>
    );
  },
  (before, after) =>
    before.most === after.most &&
    before.points.length === after.points.length &&
    before.points.every((point, n) => {
      const other = after.points[n];
      return point.in === other?.in && point.out === other.out;
    }),
);

/** Counts over time, as bars. */
export function Bars(props: {
  buckets: { at: number; count: number }[];
  label: string;
  tone?: "red" | "green";
}) {
  const { buckets, label, tone = "red" } = props;
  const top = Math.max(1, ...buckets.map((bucket) => bucket.count));
  const step = WIDTH / Math.max(buckets.length, 12);
  const from = WIDTH - buckets.length * step;
  return (
    <svg className={`bars ${tone}`} width={WIDTH} height={HEIGHT} role="img" aria-label={label}>
      <line x1="0" x2={WIDTH} y1={HEIGHT - 0.5} y2={HEIGHT - 0.5} />
      {buckets.map((bucket, n) => {
        const height = bucket.count === 0 ? 0 : Math.max(2, (bucket.count / top) * HEIGHT);
        return (
          <rect
            key={bucket.at}
            x={from + n * step}
            y={HEIGHT - height}
            width={Math.max(1, step - 1)}
            height={height}
          />
        );
      })}
    </svg>
  );
}
