/** Redrives that run, and those of the last day. */
import { useQuery } from "@tanstack/react-query";
import { redrives } from "../api/queries";
import { sourceOf } from "../api/rights";
import type { Redrive } from "../api/types";
import { Ago } from "../parts/age";
import { Empty } from "../parts/empty";
import { ErrorNotice } from "../parts/error-notice";
import { Bar, CancelRedrive } from "../parts/redrive-progress";
import { Waiting } from "../parts/waiting";
import { link } from "../router";

export default function Redrives() {
  const { data, error } = useQuery(redrives);
  if (data === undefined) return error ? <ErrorNotice error={error} /> : <Waiting />;
  const sorted = data.toSorted((a, b) => b.created_at - a.created_at);
  return (
    <div className="stack">
      <h1>Redrives</h1>
      <section className="panel" aria-label="Redrives">
        {sorted.length === 0 ? (
          <Empty>No redrive in the last day. They begin at a queue’s dead letters.</Empty>
        ) : (
          sorted.map((job) => <One key={job.id} job={job} />)
        )}
      </section>
    </div>
  );
}

function One({ job }: { job: Redrive }) {
  const source = sourceOf(job.dlq);
  return (
    <div className="job" data-testid="redrive" data-state={job.state}>
      <div className="clip">
        <a className="strong" href={link("queues", source, "dead")}>
          {source}
        </a>
        {job.to && job.to !== source ? <span className="quiet"> to {job.to}</span> : null}
        <div className="small quiet">
          <Ago at={job.created_at} />
        </div>
      </div>
      <div>
        <Bar job={job} />
        {job.error ? <div className="red small wrap">{job.error}</div> : null}
      </div>
      <CancelRedrive job={job} />
    </div>
  );
}
