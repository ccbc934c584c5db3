/** The last hour of a queue: what went in and out, what waited, how long it took. */
import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { queueHistory } from "../api/queries";
import { count, duration, perSecond } from "../format";
import { Chart } from "./chart";

export default function QueueCharts({ queue }: { queue: string }) {
  const { data } = useQuery(queueHistory(queue));
  const past = data?.queues.find((each) => each.queue === queue);
  const points = past?.points ?? [];
  const spans = past?.spans ?? [];
  const times = points.map((point) => point.at);
  return (
    // It scrolls sideways on a telephone.
    // eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex
    <section className="charts" aria-label="Charts" tabIndex={0}>
      <Figure title="Per second" isEmpty={data !== undefined && points.length < 2}>
        <Chart
          label={`${queue}: messages in, out and dead per second`}
          times={times}
          show={perSecond}
          lines={[
            { title: "In", color: "blue", isFilled: true, values: points.map((p) => p.in_rate) },
            { title: "Out", color: "green", values: points.map((p) => p.out_rate) },
            { title: "Dead", color: "red", values: points.map((p) => p.dead_rate) },
          ]}
        />
      </Figure>
      <Figure title="Messages" isEmpty={data !== undefined && points.length < 2}>
        <Chart
          label={`${queue}: messages ready, in processing and dead`}
          times={times}
          show={short}
          lines={[
            { title: "Ready", color: "blue", isFilled: true, values: points.map((p) => p.ready) },
            { title: "Processing", color: "amber", values: points.map((p) => p.leased) },
            { title: "Dead", color: "red", values: points.map((p) => p.dead) },
          ]}
        />
      </Figure>
      <Figure title="Wait and handle time" isEmpty={data !== undefined && spans.length < 2}>
        <Chart
          label={`${queue}: how long messages waited and were worked on`}
          times={spans.map((span) => span.at)}
          show={duration}
          lines={[
            { title: "Wait p50", color: "quiet", values: spans.map((s) => s.wait_p50) },
            { title: "p95", color: "amber", values: spans.map((s) => s.wait_p95) },
            { title: "Handle p50", color: "green", values: spans.map((s) => s.handle_p50) },
            { title: "p95 ", color: "blue", values: spans.map((s) => s.handle_p95) },
          ]}
        />
      </Figure>
    </section>
  );
}

function Figure(props: { title: string; isEmpty: boolean; children: ReactNode }) {
  return (
    <figure className="panel">
      <figcaption>{props.title}</figcaption>
      {props.isEmpty ? <p className="empty small">Nothing was measured yet</p> : props.children}
    </figure>
  );
}

function short(value: number): string {
  return value >= 10_000 ? `${count(Math.round(value / 1000))}k` : count(value);
}
