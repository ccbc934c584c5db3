/** What is ready, delayed, in processing or finished: a page at a time, live. */
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { browse } from "../api/queries";
import type { BrowseState, Entry } from "../api/types";
import { Notice } from "../parts/error-notice";
import { Empty } from "../parts/empty";
import { columnsOf } from "../parts/message-columns";
import { Paging, usePages } from "../parts/paging";
import { SearchBox } from "../parts/search-box";
import { VirtualTable } from "../parts/virtual-table";
import { Waiting } from "../parts/waiting";
import { go, link, withQuery } from "../router";
import { isEmpty, parseSearch } from "../search";

export type Tab = "ready" | "delayed" | "processing" | "log";

const STATES: Record<Tab, BrowseState> = {
  ready: "ready",
  delayed: "delayed",
  processing: "leased",
  log: "log",
};
/** All that is in processing is watched at once; the rest is leafed through. */
const LIMITS: Record<Tab, number> = { ready: 100, delayed: 100, processing: 1000, log: 100 };

const EMPTY: Record<Tab, string> = {
  ready: "Nothing waits to be leased.",
  delayed: "Nothing waits for its time.",
  processing: "Nobody works on anything.",
  log: "Nothing is finished, or the log is not kept.",
};

export function Messages({ queue, tab, search }: { queue: string; tab: Tab; search: string }) {
  const filters = useMemo(() => {
    const wanted = parseSearch(search);
    return tab === "log" ? { ...wanted, newest: true } : wanted;
  }, [search, tab]);
  const isFiltered = !isEmpty(parseSearch(search));
  const pages = usePages(`${queue} ${tab} ${search}`);
  const { data: page, error } = useQuery(
    browse(queue, STATES[tab], filters, pages.after, LIMITS[tab]),
  );
  const columns = useMemo(() => columnsOf(queue, tab), [queue, tab]);
  const find = (line: string) => go(withQuery(link("queues", queue, tab), { q: line }), true);
  return (
    <div className="stack">
      <div className="row">
        <SearchBox key={search} queue={queue} value={search} onSearch={find} />
      </div>
      <Notice error={error} />
      <div className="panel">
        {page === undefined ? (
          error ? null : (
            <Waiting />
          )
        ) : page.entries.length === 0 ? (
          <Empty hint={tab === "ready" && !isFiltered ? first(queue) : undefined}>
            {isFiltered ? "Nothing here matches." : EMPTY[tab]}
          </Empty>
        ) : (
          <VirtualTable
            label={`${queue}: ${tab}`}
            rows={page.entries}
            columns={columns}
            idOf={idOf}
          />
        )}
      </div>
      {page ? (
        <Paging
          pages={pages}
          shown={page.entries.length}
          after={page.after}
          looked={isFiltered ? (page.looked ?? 0) : undefined}
        />
      ) : null}
    </div>
  );
}

export function idOf(entry: Entry): string {
  return entry.message.id;
}

function first(queue: string): string {
  return `curl --json '{"payload": {"id": 1}}' ${window.location.origin}/v1/queues/${queue}/messages`;
}
