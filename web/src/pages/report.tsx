/** A report that a Spark job made: a page of its own, in a frame that may do nothing. */
import { useQuery } from "@tanstack/react-query";
import { report } from "../api/queries";
import { count, exactly } from "../format";
import { Crumbs } from "../parts/crumbs";
import { Empty } from "../parts/empty";
import { ErrorNotice } from "../parts/error-notice";
import { JsonTree } from "../parts/json-tree";
import { Waiting } from "../parts/waiting";
import { link } from "../router";

export default function ReportPage({ id }: { id: string }) {
  const { data, error } = useQuery(report(id));
  if (data === undefined) return error ? <ErrorNotice error={error} /> : <Waiting />;
  return (
    <div className="stack">
      <Crumbs steps={[["Spark", link("spark")]]} />
      <div className="row">
        <h1>{data.title}</h1>
        <span className="quiet small">
          {exactly(data.made_at)}
          {data.rows == null ? "" : ` · ${count(data.rows)} rows`}
        </span>
      </div>
      {data.html ? (
        // No script, no form, no way out: it is somebody's file.
        <iframe className="report" sandbox="" srcDoc={data.html} title={data.title} />
      ) : (
        <Empty>The page of this report is not kept.</Empty>
      )}
      {data.summary === undefined || data.summary === null ? null : (
        <section className="panel padded stack" aria-label="Summary">
          <h2>Summary</h2>
          <JsonTree value={data.summary} />
        </section>
      )}
    </div>
  );
}
