/** Spark queries that read from here, how far they are, and the reports they made. */
import { useQuery } from "@tanstack/react-query";
import { pipelines, reports } from "../api/queries";
import type { Pipeline, Report } from "../api/types";
import { count, counted, duration, exactly } from "../format";
import { Ago } from "../parts/age";
import { Empty } from "../parts/empty";
import { ErrorNotice } from "../parts/error-notice";
import { Bars } from "../parts/sparkline";
import { Waiting } from "../parts/waiting";
import { link } from "../router";

export default function Spark() {
  const { data, error } = useQuery(pipelines);
  const { data: made } = useQuery(reports);
  if (data === undefined) return error ? <ErrorNotice error={error} /> : <Waiting />;
  return (
    <div className="stack">
      <h1>Spark</h1>
      <section className="panel" aria-label="Spark queries">
        {data.length === 0 ? (
          <Empty hint={'spark.readStream.format("holdfast").option("queue", "orders").load()'}>
            No Spark query has read from this store.
          </Empty>
        ) : (
          data.map((each) => <Query key={each.query} query={each} />)
        )}
      </section>
      {made && made.length > 0 ? <Reports made={made} /> : null}
    </div>
  );
}

const TONES: Record<string, string> = {
  running: "good",
  idle: "",
  stopped: "",
  gone: "bad",
  "in doubt": "warn",
};

function Query({ query }: { query: Pipeline }) {
  const batches = query.history.map((batch) => ({ at: batch.batch, count: batch.rows }));
  return (
    <div className="pipeline" data-testid="pipeline">
      <div style={{ minWidth: 0 }}>
        <div className="row">
          <span className="strong clip">{query.name || query.query}</span>
          <span className={`tag ${TONES[query.state] ?? ""}`}>{query.state}</span>
        </div>
        <div className="small quiet">
          reads <a href={link("queues", query.queue)}>{query.queue}</a>
          {query.seen_at ? (
            <>
              {" "}
              · seen <Ago at={query.seen_at} />
            </>
          ) : null}
        </div>
      </div>
      <dl className="facts plain">
        <Fact word="Batch" value={count(query.batch)} />
        <Fact word="Holds" value={`${count(query.held)}${query.sealed ? ", sealed" : ""}`} />
        <Fact word="Backlog" value={query.backlog === null ? "—" : count(query.backlog)} />
        <Fact word="Done" value={count(query.done)} />
        <Fact word="Retried" value={count(query.retried)} />
        <Fact word="Dead" value={count(query.dead)} isBad={query.dead > 0} />
        <Fact word="Last batch" value={query.batch_ms ? duration(query.batch_ms / 1000) : "—"} />
      </dl>
      <Bars
        tone="green"
        buckets={batches}
        label={`Rows of the last ${counted(batches.length, "batch", "batches")}`}
      />
    </div>
  );
}

function Fact({ word, value, isBad }: { word: string; value: string; isBad?: boolean }) {
  return (
    <div>
      <dt>{word}</dt>
      <dd className={isBad ? "red strong" : undefined}>{value}</dd>
    </div>
  );
}

function Reports({ made }: { made: Report[] }) {
  return (
    <section className="panel" aria-label="Reports">
      <div className="scroll">
        <table
          className="grid"
          style={{ minWidth: "40rem" }}
          aria-label="Reports, the newest first"
        >
          <thead>
            <tr>
              <th scope="col">Report</th>
              <th scope="col">Made</th>
              <th scope="col">Lake</th>
              <th scope="col" className="num">
                Rows
              </th>
            </tr>
          </thead>
          <tbody>
            {made.map((report) => (
              <tr key={report.id}>
                <td>
                  <a className="strong" href={link("spark", "reports", report.id)}>
                    {report.title}
                  </a>
                </td>
                <td>{exactly(report.made_at)}</td>
                <td className="mono">{report.lake ?? "—"}</td>
                <td className="num">{report.rows == null ? "—" : count(report.rows)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
