/** Topics, and how far each of their groups is. */
import { useQuery } from "@tanstack/react-query";
import { topics } from "../api/queries";
import type { Stats, Topic } from "../api/types";
import { count, counted } from "../format";
import { span } from "../live/countdown";
import { Age } from "../parts/age";
import { Empty } from "../parts/empty";
import { ErrorNotice } from "../parts/error-notice";
import { RateText } from "../parts/rates";
import { Waiting } from "../parts/waiting";
import { link } from "../router";

export default function Topics() {
  const { data, error } = useQuery(topics);
  if (data === undefined) return error ? <ErrorNotice error={error} /> : <Waiting />;
  return (
    <div className="stack">
      <h1>Topics</h1>
      {data.length === 0 ? (
        <div className="panel">
          <Empty
            hint={`curl -X PUT ${window.location.origin}/v1/topics/shop
curl -X PUT ${window.location.origin}/v1/topics/shop/groups/billing`}
          >
            There is no topic. A topic gives every message to each of its groups.
          </Empty>
        </div>
      ) : (
        data.map((topic) => <One key={topic.topic} topic={topic} />)
      )}
    </div>
  );
}

function One({ topic }: { topic: Topic }) {
  const groups = Object.entries(topic.groups);
  const most = Math.max(1, ...groups.map(([, stats]) => waiting(stats)));
  return (
    <section className="panel" aria-label={`Topic ${topic.topic}`}>
      <div className="row" style={{ padding: "0.6rem 0.75rem" }}>
        <h2>{topic.topic}</h2>
        <span className="quiet small">
          {counted(groups.length, "group")} ·{" "}
          {topic.log
            ? `${count(topic.retained)} kept for later groups${topic.retention ? `, for ${span(topic.retention)}` : ""}`
            : "nothing is kept for later groups"}
        </span>
      </div>
      {groups.length === 0 ? (
        <Empty>No group is bound: what is published goes to nobody.</Empty>
      ) : (
        <div className="scroll">
          <table
            className="grid"
            style={{ minWidth: "44rem" }}
            aria-label={`Groups of ${topic.topic}`}
          >
            <thead>
              <tr>
                <th scope="col">Group</th>
                <th scope="col">Lag</th>
                {["Processing", "Dead", "Out/s", "Oldest"].map((word) => (
                  <th scope="col" className="num" key={word}>
                    {word}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {groups.map(([name, stats]) => (
                <tr key={name}>
                  <td>
                    <a className="strong" href={link("queues", stats.queue)}>
                      {name}
                    </a>{" "}
                    {stats.paused ? <span className="tag warn">paused</span> : null}
                    {topic.filling.includes(name) ? (
                      <span className="tag info">filling</span>
                    ) : null}
                  </td>
                  <td>
                    <div className="row" style={{ flexWrap: "nowrap" }}>
                      <span style={{ minWidth: "4rem", textAlign: "end" }}>
                        {count(waiting(stats))}
                      </span>
                      <span
                        aria-hidden="true"
                        className="lag"
                        style={{ width: `${(70 * waiting(stats)) / most}%` }}
                      />
                    </div>
                  </td>
                  <td className="num">{count(stats.leased)}</td>
                  <td className={stats.dead > 0 ? "num red strong" : "num"}>{count(stats.dead)}</td>
                  <td className="num">
                    <RateText queue={stats.queue} way="out" />
                  </td>
                  <td className="num">
                    <Age seconds={stats.oldest_age} at={stats.at} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function waiting(stats: Stats): number {
  return stats.ready + stats.delayed;
}
