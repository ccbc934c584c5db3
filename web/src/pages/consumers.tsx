/** Who holds what of a queue, and who owns which partition. */
import { useQuery } from "@tanstack/react-query";
import { consumers, partitions } from "../api/queries";
import type { Consumer, Partition } from "../api/types";
import { count, counted } from "../format";
import { span } from "../live/countdown";
import { Ago } from "../parts/age";
import { Countdown } from "../parts/countdown";
import { Empty } from "../parts/empty";
import { ErrorNotice } from "../parts/error-notice";
import { Waiting } from "../parts/waiting";

/** Colours of owners: told apart by more than colour, as each box names its owner. */
const HUES = [165, 215, 35, 285, 345, 190, 75, 255];

export function Consumers({ queue, isOrdered }: { queue: string; isOrdered: boolean }) {
  const { data: held, error } = useQuery(consumers(queue));
  const { data: parts } = useQuery(partitions(queue));
  if (held === undefined) return error ? <ErrorNotice error={error} /> : <Waiting />;
  return (
    <div className="stack">
      <section className="panel" aria-label="Consumers">
        {held.consumers.length === 0 ? (
          <Empty>Nobody holds a message of {queue} now.</Empty>
        ) : (
          <Holders queue={queue} holders={held.consumers} />
        )}
      </section>
      {parts && (isOrdered || parts.length > 1) ? (
        <section className="panel padded stack" aria-label="Partitions">
          <div className="row">
            <h2>Partitions</h2>
            <span className="quiet small">
              {isOrdered
                ? "each is worked on by its owner alone, in order"
                : "messages with one key share one of them"}
            </span>
          </div>
          <Owners parts={parts} isOrdered={isOrdered} />
          <Lags parts={parts} isOrdered={isOrdered} />
        </section>
      ) : null}
    </div>
  );
}

function Holders({ queue, holders }: { queue: string; holders: Consumer[] }) {
  return (
    <div className="scroll">
      <table className="grid" style={{ minWidth: "40rem" }} aria-label={`Consumers of ${queue}`}>
        <thead>
          <tr>
            <th scope="col">Consumer</th>
            <th scope="col" className="num">
              Holds
            </th>
            <th scope="col">Longest held since</th>
            <th scope="col" className="num">
              Next deadline
            </th>
            <th scope="col">Partitions</th>
          </tr>
        </thead>
        <tbody>
          {holders.map((each) => (
            <tr key={each.owner}>
              <td className="strong">{each.owner}</td>
              <td className="num">{count(each.leases ?? 0)}</td>
              <td>{each.oldest_leased_at ? <Ago at={each.oldest_leased_at} /> : "—"}</td>
              <td className="num">
                <Countdown deadline={each.next_deadline} about={`queue:${queue}`} />
              </td>
              <td>{each.partitions?.join(", ") || "—"}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Owners({ parts, isOrdered }: { parts: Partition[]; isOrdered: boolean }) {
  const owners = [...new Set(parts.map((part) => part.owner).filter((owner) => owner !== null))];
  return (
    <ul className="owners" aria-label="Who owns what">
      {parts.map((part) => {
        const hue = HUES[owners.indexOf(part.owner ?? "") % HUES.length];
        const color = part.owner === null ? "var(--hf-line)" : `hsl(${hue} 55% 45%)`;
        return (
          <li key={part.partition} style={{ borderInlineStartColor: color }}>
            <div className="small quiet">Partition {part.partition}</div>
            <div className="clip strong" title={part.owner ?? undefined}>
              {part.owner ?? (isOrdered ? "no owner" : counted(part.lag, "waits", "wait"))}
            </div>
          </li>
        );
      })}
    </ul>
  );
}

function Lags({ parts, isOrdered }: { parts: Partition[]; isOrdered: boolean }) {
  return (
    <div className="scroll">
      <table className="grid" style={{ minWidth: "40rem" }} aria-label="Partitions and their lag">
        <thead>
          <tr>
            <th scope="col">Partition</th>
            {isOrdered ? <th scope="col">Owner</th> : null}
            {["Lag", "Ready", "Delayed", "Processing", "Oldest"].map((word) => (
              <th scope="col" className="num" key={word}>
                {word}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {parts.map((part) => (
            <tr key={part.partition}>
              <td>{part.partition}</td>
              {isOrdered ? <td>{part.owner ?? <span className="amber">nobody</span>}</td> : null}
              <td className="num strong">{count(part.lag)}</td>
              <td className="num">{count(part.ready)}</td>
              <td className="num">{count(part.delayed)}</td>
              <td className="num">{count(part.leased)}</td>
              <td className="num">{part.oldest_age === null ? "—" : span(part.oldest_age)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
