/** Dead letters: what they died of, how many of each, since when; and the way back. */
import { Button } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { browse, failures, identity, type Filters } from "../api/queries";
import { dlqOf, may } from "../api/rights";
import type { FailureGroup, Failures, RedriveAsk } from "../api/types";
import { axis, spread } from "../buckets";
import { count, counted } from "../format";
import { clock } from "../live/clock";
import { Ago } from "../parts/age";
import { Empty } from "../parts/empty";
import { ErrorNotice, Notice } from "../parts/error-notice";
import { columnsOf } from "../parts/message-columns";
import { Paging, usePages } from "../parts/paging";
import { RedriveDialog } from "../parts/redrive-dialog";
import { SearchBox } from "../parts/search-box";
import { Bars } from "../parts/sparkline";
import { VirtualTable } from "../parts/virtual-table";
import { Waiting } from "../parts/waiting";
import { go, link, withQuery } from "../router";
import { deadFilter, isEmpty, parseSearch } from "../search";
import { idOf } from "./messages";

const LIMIT = 200;

interface Asked {
  ask: RedriveAsk;
  which?: string;
}

export function Dead({ queue, query }: { queue: string; query: URLSearchParams }) {
  const search = query.get("q") ?? "";
  const fingerprint = query.get("group") ?? undefined;
  const [asked, setAsked] = useState<Asked>();
  const { data: who } = useQuery(identity);
  const { data: groups, error } = useQuery(failures(queue));
  const isAdmin = may(who, "admin", dlqOf(queue));
  const show = (next: { q?: string; group?: string }) =>
    go(withQuery(link("queues", queue, "dead"), { q: search, group: fingerprint, ...next }), true);
  if (groups === undefined) return error ? <ErrorNotice error={error} /> : <Waiting />;
  // The dialog has one place: the last dead letter may leave while it still shows how far it is.
  return (
    <div className="stack">
      {groups.total === 0 ? (
        <div className="panel">
          <Empty>No message of {queue} is dead.</Empty>
        </div>
      ) : (
        <>
          <Groups
            groups={groups}
            chosen={fingerprint}
            onChoose={(group) => show({ group })}
            onRedrive={isAdmin ? (group) => setAsked(ofGroup(queue, group)) : undefined}
          />
          <Letters
            key={`${search} ${fingerprint}`}
            queue={queue}
            search={search}
            fingerprint={fingerprint}
            onSearch={(q) => show({ q })}
            onRedrive={isAdmin ? setAsked : undefined}
          />
        </>
      )}
      {asked ? (
        <RedriveDialog key="redrive" {...asked} onClose={() => setAsked(undefined)} />
      ) : null}
    </div>
  );
}

function ofGroup(queue: string, group: FailureGroup): Asked {
  return {
    ask: { dlq_queue: dlqOf(queue), where: { fingerprint: group.fingerprint } },
    which: `that died of “${nameOf(group)}”`,
  };
}

function nameOf(group: FailureGroup): string {
  return [group.code, group.error].filter(Boolean).join(": ") || group.reason || "no error";
}

interface GroupsProps {
  groups: Failures;
  chosen: string | undefined;
  onChoose: (fingerprint: string | undefined) => void;
  onRedrive: ((group: FailureGroup) => void) | undefined;
}

function Groups({ groups, chosen, onChoose, onRedrive }: GroupsProps) {
  const isPart = groups.looked < groups.total;
  const [now] = useState(() => clock.now());
  const times = groups.groups.map((group) => group.by_time ?? []);
  const until = Math.max(now, ...times.flat().map((bucket) => bucket.at));
  const scale = axis(times, groups.bucket_ms, until);
  return (
    <section className="panel" aria-label="Failure groups">
      <div className="row" style={{ padding: "0.6rem 0.75rem 0.2rem" }}>
        <h2>What they died of</h2>
        <span className="quiet small">
          {counted(groups.groups.length, "group")}
          {isPart ? ` among the oldest ${count(groups.looked)} of ${count(groups.total)}` : ""}
        </span>
      </div>
      {groups.groups.map((group) => (
        <div
          key={group.fingerprint}
          className={chosen === group.fingerprint ? "group chosen" : "group"}
          data-testid="failure-group"
        >
          <span className="strong" style={{ fontSize: "1.125rem", textAlign: "end" }}>
            {count(group.count)}
          </span>
          <div style={{ minWidth: 0 }}>
            <div className="wrap">
              <b>{group.code}</b> {group.error ?? group.reason}
            </div>
            <div className="small quiet">
              {group.reason ? `${group.reason} · ` : ""}
              {group.handler ? `${group.handler} · ` : ""}
              {group.first_dead_at ? (
                <>
                  first <Ago at={group.first_dead_at} /> ·{" "}
                </>
              ) : null}
              {group.last_dead_at ? (
                <>
                  last <Ago at={group.last_dead_at} />
                </>
              ) : null}
            </div>
          </div>
          <Bars
            buckets={spread(group.by_time ?? [], scale, until)}
            label={`${nameOf(group)}: ${counted(group.count, "death")} over time`}
          />
          <div className="row" style={{ flexWrap: "nowrap" }}>
            <Button
              size="compact-xs"
              variant="default"
              aria-pressed={chosen === group.fingerprint}
              aria-label={`Show only ${nameOf(group)}`}
              onClick={() => onChoose(chosen === group.fingerprint ? undefined : group.fingerprint)}
            >
              {chosen === group.fingerprint ? "Show all" : "Show"}
            </Button>
            {onRedrive ? (
              <Button
                size="compact-xs"
                variant="light"
                aria-label={`Redrive ${nameOf(group)}`}
                onClick={() => onRedrive(group)}
              >
                Redrive…
              </Button>
            ) : null}
          </div>
        </div>
      ))}
    </section>
  );
}

interface LettersProps {
  queue: string;
  search: string;
  fingerprint: string | undefined;
  onSearch: (line: string) => void;
  onRedrive: ((asked: Asked) => void) | undefined;
}

function Letters({ queue, search, fingerprint, onSearch, onRedrive }: LettersProps) {
  const dlq = dlqOf(queue);
  const filters: Filters = useMemo(
    () => ({ ...parseSearch(search), fingerprint }),
    [search, fingerprint],
  );
  const isFiltered = !isEmpty(filters);
  const pages = usePages(`${dlq} ${search} ${fingerprint}`);
  const { data: page, error } = useQuery(browse(dlq, "ready", filters, pages.after, LIMIT));
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const columns = useMemo(() => columnsOf(dlq, "dead"), [dlq]);
  const ids = page?.entries.map(idOf) ?? [];
  const here = new Set(ids.filter((id) => chosen.has(id)));
  const where = deadFilter(filters);
  const selection = {
    chosen: here,
    toggle: (id: string) => setChosen(toggled(here, id)),
    toggleAll: () => setChosen(new Set(here.size === ids.length ? [] : ids)),
  };
  return (
    <section className="stack" aria-label="Dead letters">
      <div className="row">
        <SearchBox queue={dlq} value={search} onSearch={onSearch} />
        {onRedrive ? (
          <div className="row push">
            {here.size > 0 ? (
              <Button
                size="xs"
                onClick={() =>
                  onRedrive({ ask: { dlq_queue: dlq, ids: [...here] }, which: "that are selected" })
                }
              >
                Redrive {count(here.size)} selected…
              </Button>
            ) : null}
            <Button
              size="xs"
              variant="default"
              disabled={where === null}
              title={where === null ? "Text only looks; redrive a selection or a group" : undefined}
              onClick={() =>
                where &&
                onRedrive({
                  ask: isFiltered ? { dlq_queue: dlq, where } : { dlq_queue: dlq },
                  which: isFiltered ? "that match" : undefined,
                })
              }
            >
              {isFiltered ? "Redrive all matching…" : "Redrive all…"}
            </Button>
          </div>
        ) : null}
      </div>
      <Notice error={error} />
      <div className="panel">
        {page === undefined ? (
          error ? null : (
            <Waiting />
          )
        ) : page.entries.length === 0 ? (
          <Empty>{isFiltered ? "No dead letter matches." : "No dead letters."}</Empty>
        ) : (
          <VirtualTable
            label={`${queue}: dead letters`}
            rows={page.entries}
            columns={columns}
            idOf={idOf}
            selection={onRedrive ? selection : undefined}
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
    </section>
  );
}

function toggled(chosen: ReadonlySet<string>, id: string): Set<string> {
  const made = new Set(chosen);
  if (!made.delete(id)) made.add(id);
  return made;
}
