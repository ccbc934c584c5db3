/** Every queue, the troubled first, and in words why. */
import { TextInput } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { memo, useState } from "react";
import { history, identity, queues, stats } from "../api/queries";
import type { QueueDoc, QueueHistory, Stats } from "../api/types";
import { count, perSecond } from "../format";
import { useTicking } from "../live/hooks";
import { rates, type Rate } from "../live/rates";
import { ticker } from "../live/ticker";
import { Age } from "../parts/age";
import { Empty } from "../parts/empty";
import { ErrorNotice, Notice } from "../parts/error-notice";
import { RateText } from "../parts/rates";
import { Sparkline } from "../parts/sparkline";
import { Waiting } from "../parts/waiting";
import { link } from "../router";
import { compare, trouble, type Trouble } from "../trouble";

const POINTS = 60;
const FIRST = `curl --json '{"policy": {"max_attempts": 3}}' -X PUT ${window.location.origin}/v1/queues/orders
curl --json '{"payload": {"id": 1}}' ${window.location.origin}/v1/queues/orders/messages`;

interface Row {
  stats: Stats;
  trouble: Trouble;
  spec: QueueDoc | undefined;
  points: Rate[];
}

export function Overview() {
  const { data: numbers, error } = useQuery(stats);
  const { data: specs } = useQuery(queues);
  const { data: past } = useQuery(history);
  const { data: who } = useQuery(identity);
  const [wanted, setWanted] = useState("");
  // Levels of trouble and charts change slowly: every few seconds is enough, and keeps rows still.
  const beat = useTicking((now) => String(Math.floor(now / (past?.step_ms ?? 5000))), true);
  if (numbers === undefined) return error ? <ErrorNotice error={error} /> : <Waiting />;
  const rows = rowsOf(numbers, specs ?? [], past?.queues ?? [], past?.step_ms ?? 5000, beat);
  const shown = rows.filter((row) => row.stats.queue.includes(wanted.trim()));
  return (
    <div className="stack">
      <div className="row">
        <h1>Queues</h1>
        <Totals numbers={numbers} />
        <TextInput
          className="push"
          aria-label="Find a queue"
          placeholder="Find a queue"
          size="xs"
          value={wanted}
          onChange={(event) => setWanted(event.currentTarget.value)}
        />
      </div>
      <Notice error={error} />
      <section className="panel" aria-label="Queues">
        {rows.length === 0 ? (
          <Empty hint={who?.rights.includes("admin") ? FIRST : undefined}>
            There is no queue{who?.queues.includes("*") ? " yet" : " that your key may read"}.
          </Empty>
        ) : (
          <Table rows={shown} />
        )}
        {rows.length > 0 && shown.length === 0 ? (
          <Empty>No queue has that in its name.</Empty>
        ) : null}
      </section>
    </div>
  );
}

function rowsOf(
  numbers: Stats[],
  specs: QueueDoc[],
  past: QueueHistory[],
  step: number,
  beat: string,
): Row[] {
  const now = Math.max(Number(beat) * step, 0) || ticker.read();
  const spec = new Map(specs.map((each) => [each.queue, each]));
  const recorded = new Map(past.map((each) => [each.queue, each.points]));
  const rows = numbers.map((each): Row => {
    const points = recorded.get(each.queue) ?? [];
    const rate = rates.rate(each.queue, ticker.read());
    return {
      stats: each,
      spec: spec.get(each.queue),
      trouble: trouble({ stats: each, rate, points }, ticker.read()),
      points: rates.points(each.queue, points, step, now, POINTS),
    };
  });
  return rows.sort(compare);
}

function Totals({ numbers }: { numbers: Stats[] }) {
  const sum = (of: (each: Stats) => number) => numbers.reduce((all, each) => all + of(each), 0);
  const flow = (way: "in" | "out") => (now: number) =>
    perSecond(numbers.reduce((all, each) => all + rates.rate(each.queue, now)[way], 0));
  const dead = sum((each) => each.dead);
  return (
    <p className="quiet" style={{ margin: 0 }} data-testid="totals">
      {count(sum((each) => each.ready))} ready · {count(sum((each) => each.leased))} processing ·{" "}
      <span className={dead > 0 ? "red" : undefined}>{count(dead)} dead</span> ·{" "}
      {useTicking(flow("in"), true)} in/s · {useTicking(flow("out"), true)} out/s
    </p>
  );
}

function Table({ rows }: { rows: Row[] }) {
  return (
    <div className="scroll">
      <table className="grid overview" aria-label="Queues, the troubled first">
        <colgroup>
          <col style={{ width: "auto" }} />
          <col style={{ width: "6.5rem" }} span={4} />
          <col style={{ width: "5.5rem" }} span={2} />
          <col style={{ width: "9rem" }} />
          <col style={{ width: "6.5rem" }} />
        </colgroup>
        <thead>
          <tr>
            <th scope="col">Queue</th>
            <th scope="col" className="num">
              Ready
            </th>
            <th scope="col" className="num">
              Delayed
            </th>
            <th scope="col" className="num">
              Processing
            </th>
            <th scope="col" className="num">
              Dead
            </th>
            <th scope="col" className="num">
              In/s
            </th>
            <th scope="col" className="num">
              Out/s
            </th>
            <th scope="col">Last minutes</th>
            <th scope="col" className="num">
              Oldest
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <QueueRow key={row.stats.queue} row={row} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

const QueueRow = memo(function QueueRow({ row }: { row: Row }) {
  const { stats: numbers, spec } = row;
  const { queue } = numbers;
  return (
    <tr data-testid={`queue-${queue}`} data-trouble={row.trouble.level}>
      <td className="whole">
        <div className="clip">
          <a className="name" href={link("queues", queue)}>
            {queue}
          </a>{" "}
          {numbers.paused ? <span className="tag warn">paused</span> : null}{" "}
          {spec?.ordered ? <span className="tag">ordered</span> : null}{" "}
          {spec && spec.total_partitions > 1 ? (
            <span className="tag">{spec.total_partitions} partitions</span>
          ) : null}
        </div>
        <Why trouble={row.trouble} />
      </td>
      <Figure word="Ready" value={numbers.ready} href={link("queues", queue, "ready")} />
      <Figure word="Delayed" value={numbers.delayed} href={link("queues", queue, "delayed")} />
      <Figure word="Processing" value={numbers.leased} href={link("queues", queue, "processing")} />
      <Figure word="Dead" value={numbers.dead} href={link("queues", queue, "dead")} isBad />
      <td className="num" data-word="In/s">
        <RateText queue={queue} way="in" />
      </td>
      <td className="num" data-word="Out/s">
        <RateText queue={queue} way="out" />
      </td>
      <td className="chart-cell">
        <Sparkline points={row.points} most={POINTS} />
      </td>
      <td className="num" data-word="Oldest">
        <Age seconds={numbers.oldest_age} at={numbers.at} />
      </td>
    </tr>
  );
});

function Why({ trouble: { level, reasons } }: { trouble: Trouble }) {
  const tone = level >= 3 ? "red" : level >= 1 ? "amber" : "quiet";
  return <div className={`why clip ${tone}`}>{reasons.join(" · ") || "fine"}</div>;
}

function Figure(props: { word: string; value: number; href: string; isBad?: boolean }) {
  const { word, value, href, isBad } = props;
  return (
    <td className={value === 0 ? "num zero" : "num"} data-word={word}>
      {value === 0 ? (
        "0"
      ) : (
        <a
          href={href}
          className={isBad ? "red strong" : "plain"}
          aria-label={`${count(value)} ${word}`}
        >
          {count(value)}
        </a>
      )}
    </td>
  );
}
