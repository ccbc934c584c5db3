/** One queue: its numbers, its charts, and what it holds by state. */
import { Tabs } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { lazy, Suspense } from "react";
import { queue as queueQuery, stats as statsQuery } from "../api/queries";
import { sourceOf } from "../api/rights";
import type { Stats } from "../api/types";
import { count } from "../format";
import { Age } from "../parts/age";
import { Crumbs } from "../parts/crumbs";
import { ErrorNotice } from "../parts/error-notice";
import { QueueActions } from "../parts/queue-actions";
import { RateText } from "../parts/rates";
import { Waiting } from "../parts/waiting";
import { go, link } from "../router";
import { Consumers } from "./consumers";
import { Dead } from "./dead";
import { Messages } from "./messages";

const QueueCharts = lazy(() => import("../parts/queue-charts"));

const TABS = ["ready", "delayed", "processing", "dead", "log", "consumers"] as const;
type Tab = (typeof TABS)[number];

export default function QueuePage(props: { name: string; tab: string; query: URLSearchParams }) {
  const name = sourceOf(props.name);
  const wanted = props.name === name ? props.tab : "dead";
  const tab: Tab = TABS.find((each) => each === wanted) ?? "ready";
  const { data: all, error } = useQuery(statsQuery);
  const { data: spec, error: missing } = useQuery(queueQuery(name));
  const numbers = all?.find((each) => each.queue === name);
  if (numbers === undefined) {
    const wrong = missing ?? error;
    return wrong ? <ErrorNotice error={wrong} /> : <Waiting />;
  }
  const search = props.query.get("q") ?? "";
  return (
    <div className="stack">
      <div className="row">
        <Crumbs steps={[["Queues", link()]]} />
        <span className="quiet">/</span>
        <h1 className="wrap">{name}</h1>
        {numbers.paused ? <span className="tag warn">paused</span> : null}
        {spec?.ordered ? <span className="tag">ordered</span> : null}
        {spec && spec.total_partitions > 1 ? (
          <span className="tag">{spec.total_partitions} partitions</span>
        ) : null}
        <Numbers stats={numbers} policy={spec?.in_force} />
        <QueueActions queue={name} stats={numbers} />
      </div>
      <Suspense fallback={<div className="charts" />}>
        <QueueCharts queue={name} />
      </Suspense>
      <Tabs
        value={tab}
        onChange={(value) => value && go(link("queues", name, value))}
        keepMounted={false}
      >
        <Tabs.List
          aria-label={`What ${name} holds`}
          style={{ flexWrap: "nowrap", overflowX: "auto" }}
        >
          <Title tab="ready" word="Ready" many={numbers.ready} />
          <Title tab="delayed" word="Delayed" many={numbers.delayed} />
          <Title tab="processing" word="Processing" many={numbers.leased} />
          <Title tab="dead" word="Dead letters" many={numbers.dead} isBad />
          <Title tab="log" word="Log" many={numbers.done} />
          <Title tab="consumers" word="Consumers" />
        </Tabs.List>
        <Tabs.Panel value={tab} pt="sm">
          {tab === "dead" ? (
            <Dead queue={name} query={props.query} />
          ) : tab === "consumers" ? (
            <Consumers queue={name} isOrdered={spec?.ordered ?? false} />
          ) : (
            <Messages key={tab} queue={name} tab={tab} search={search} />
          )}
        </Tabs.Panel>
      </Tabs>
    </div>
  );
}

interface TitleProps {
  tab: Tab;
  word: string;
  many?: number;
  isBad?: boolean;
}

/** On a telephone not all fit: the one that is open is brought into sight. */
function intoSight(element: HTMLElement | null): void {
  if (element?.ariaSelected === "true")
    element.scrollIntoView({ block: "nearest", inline: "center" });
}

function Title({ tab, word, many, isBad }: TitleProps) {
  return (
    <Tabs.Tab value={tab} data-testid={`tab-${tab}`} ref={intoSight}>
      {word}
      {many === undefined ? null : (
        <span className={isBad && many > 0 ? "tag bad" : "tag"} style={{ marginInlineStart: 6 }}>
          {count(many)}
        </span>
      )}
    </Tabs.Tab>
  );
}

function Numbers({
  stats,
  policy,
}: {
  stats: Stats;
  policy?: { ack_timeout?: number; max_attempts?: number };
}) {
  return (
    <dl className="facts plain inline push">
      <Fact word="In/s">
        <RateText queue={stats.queue} way="in" />
      </Fact>
      <Fact word="Out/s">
        <RateText queue={stats.queue} way="out" />
      </Fact>
      <Fact word="Oldest waits">
        <Age seconds={stats.oldest_age} at={stats.at} />
      </Fact>
      {policy?.ack_timeout ? <Fact word="Lease">{policy.ack_timeout} s</Fact> : null}
      {policy?.max_attempts ? <Fact word="Attempts">{policy.max_attempts}</Fact> : null}
    </dl>
  );
}

function Fact({ word, children }: { word: string; children: React.ReactNode }) {
  return (
    <div>
      <dt>{word}</dt>
      <dd>{children}</dd>
    </div>
  );
}
