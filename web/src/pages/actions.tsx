/** Who did what, when, and to how many. */
import { useQuery } from "@tanstack/react-query";
import { actions } from "../api/queries";
import type { Action } from "../api/types";
import { count, when } from "../format";
import { clock } from "../live/clock";
import { Empty } from "../parts/empty";
import { ErrorNotice } from "../parts/error-notice";
import { Paging, usePages } from "../parts/paging";
import { Waiting } from "../parts/waiting";
import { link } from "../router";

export default function Actions({ queue }: { queue?: string }) {
  const pages = usePages(queue ?? "");
  const { data, error } = useQuery(actions(queue, pages.after));
  if (data === undefined) return error ? <ErrorNotice error={error} /> : <Waiting />;
  return (
    <div className="stack">
      <h1>Actions{queue ? ` on ${queue}` : ""}</h1>
      <section className="panel" aria-label="Actions">
        {data.actions.length === 0 ? (
          <Empty>Nobody has paused, purged, redriven or replayed anything yet.</Empty>
        ) : (
          <Table rows={data.actions} />
        )}
      </section>
      <Paging pages={pages} shown={data.actions.length} after={data.after} noun="action" />
    </div>
  );
}

function Table({ rows }: { rows: Action[] }) {
  const now = clock.now();
  return (
    <div className="scroll">
      <table className="grid" style={{ minWidth: "48rem" }} aria-label="Actions, the newest first">
        <colgroup>
          <col style={{ width: "12rem" }} />
          <col style={{ width: "10rem" }} />
          <col style={{ width: "9rem" }} />
          <col style={{ width: "12rem" }} />
          <col style={{ width: "6rem" }} />
          <col />
        </colgroup>
        <thead>
          <tr>
            <th scope="col">When</th>
            <th scope="col">Who</th>
            <th scope="col">What</th>
            <th scope="col">Queue</th>
            <th scope="col" className="num">
              Messages
            </th>
            <th scope="col">How</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.id} data-testid="action">
              <td>{when(row.at, now)}</td>
              <td title={row.key_id ?? undefined}>{row.who || "—"}</td>
              <td className="strong">{row.what.replaceAll("_", " ")}</td>
              <td>{row.queue ? <a href={link("queues", row.queue)}>{row.queue}</a> : "all"}</td>
              <td className="num">{typeof row.count === "number" ? count(row.count) : "—"}</td>
              <td className="mono quiet" title={row.detail ?? undefined}>
                {row.detail}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
