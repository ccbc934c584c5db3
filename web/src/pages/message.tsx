/** One message: where it is now, what is in it, and all that happened to it. */
import { Button, SegmentedControl } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState, type ReactNode } from "react";
import { identity, message as messageQuery, replay } from "../api/queries";
import { dlqOf, may, sourceOf } from "../api/rights";
import type { Detail, Message, Moment } from "../api/types";
import { count, exactly } from "../format";
import { useLive } from "../live/hooks";
import { Ago } from "../parts/age";
import { Confirm } from "../parts/confirm";
import { Countdown, ToGo } from "../parts/countdown";
import { Crumbs } from "../parts/crumbs";
import { ErrorNotice } from "../parts/error-notice";
import { JsonTree } from "../parts/json-tree";
import { said } from "../parts/notify";
import { RedriveDialog } from "../parts/redrive-dialog";
import { Waiting } from "../parts/waiting";
import { link } from "../router";

const TONES = { ready: "info", delayed: "", leased: "warn", dead: "bad", done: "good" };
const WORDS = {
  ready: "ready",
  delayed: "delayed",
  leased: "in processing",
  dead: "dead",
  done: "finished",
};
const TABS = {
  ready: "ready",
  delayed: "delayed",
  leased: "processing",
  dead: "dead",
  done: "log",
};

export default function MessagePage({ queue, id }: { queue: string; id: string }) {
  const here = useQuery(messageQuery(queue, id));
  // Who looks at a message while it dies goes with it to the dead letters, and back.
  const isGone = here.data === undefined && here.error !== null;
  const other = queue === dlqOf(queue) ? sourceOf(queue) : dlqOf(queue);
  const there = useQuery({ ...messageQuery(other, id), enabled: here.error !== null });
  const found = here.error === null ? here.data : (there.data ?? here.data);
  if (found === undefined) {
    const isAsking = isGone && there.isFetching;
    return here.error && !isAsking ? <ErrorNotice error={here.error} /> : <Waiting />;
  }
  return <Shown detail={found} />;
}

function Shown({ detail }: { detail: Detail }) {
  const { message, state } = detail;
  const source = sourceOf(message.queue);
  return (
    <div className="stack">
      <Crumbs
        steps={[
          ["Queues", link()],
          [source, link("queues", source, TABS[state])],
        ]}
      />
      <div className="row">
        <h1 className="mono wrap">{message.id}</h1>
        <span className={`tag ${TONES[state]}`} data-testid="state">
          {WORDS[state]}
        </span>
        <Acts detail={detail} />
      </div>
      <section className="panel padded" aria-label="Where it is">
        <Facts detail={detail} />
      </section>
      <div className="two">
        <div className="stack">
          <Payload message={message} />
          <Headers headers={message.headers ?? {}} />
          {detail.finished?.result === undefined ? null : (
            <section className="panel padded stack" aria-label="Result">
              <h2>Result</h2>
              <JsonTree value={detail.finished.result} />
            </section>
          )}
        </div>
        <section className="panel padded stack" aria-label="Time line">
          <h2>What happened to it</h2>
          <TimeLine moments={detail.timeline ?? []} />
        </section>
      </div>
    </div>
  );
}

function Facts({ detail }: { detail: Detail }) {
  const { message, state } = detail;
  const facts: [string, ReactNode][] = [["Queue", message.queue]];
  if (state === "leased") {
    facts.push(["Time left", <LeaseLeft key="left" detail={detail} />]);
    facts.push(["Consumer", detail.owner ?? "—"]);
  }
  if (state === "delayed") facts.push(["To go", <ToGo key="go" at={message.available_at} />]);
  if (message.dead_at) facts.push(["Died", <Ago key="died" at={message.dead_at} />]);
  if (message.reason) facts.push(["Reason", message.reason]);
  if (detail.finished) {
    facts.push(["Finished", <Ago key="finished" at={detail.finished.finished_at} />]);
    facts.push(["Status", detail.finished.status]);
  }
  facts.push(["Enqueued", <Ago key="enqueued" at={message.enqueued_at} />]);
  facts.push([
    "Attempts",
    message.max_attempts ? `${message.attempts} of ${message.max_attempts}` : message.attempts,
  ]);
  if (message.key) facts.push(["Key", message.key]);
  if (message.type) facts.push(["Type", message.type]);
  facts.push(["Priority", message.priority], ["Partition", message.partition]);
  if (message.redriven) facts.push(["Redriven", `${count(message.redriven)}×`]);
  if (message.origin) {
    const origin = link("queues", sourceOf(message.queue), "messages", message.origin);
    facts.push([
      "Replay of",
      <a key="origin" className="mono" href={origin}>
        {message.origin}
      </a>,
    ]);
  }
  return (
    <dl className="facts plain">
      {facts.map(([word, value]) => (
        <div key={word}>
          <dt>{word}</dt>
          <dd className="wrap">{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function LeaseLeft({ detail }: { detail: Detail }) {
  return <Countdown deadline={detail.deadline} about={`queue:${sourceOf(detail.message.queue)}`} />;
}

function Acts({ detail }: { detail: Detail }) {
  const { message, state } = detail;
  // What was asked for, and of which queue: the message moves on while the dialog is open.
  const [asked, setAsked] = useState<{ verb: "redrive" | "replay"; from: string }>();
  const { data: who } = useQuery(identity);
  const live = useLive();
  const queue = sourceOf(message.queue);
  const verb = state === "dead" ? "redrive" : state === "done" ? "replay" : undefined;
  const close = () => setAsked(undefined);
  return (
    <div className="row push">
      {verb && may(who, "admin", message.queue) ? (
        <Button size="xs" onClick={() => setAsked({ verb, from: message.queue })}>
          {verb === "redrive" ? "Redrive…" : "Replay…"}
        </Button>
      ) : null}
      {asked?.verb === "redrive" ? (
        <RedriveDialog ask={{ dlq_queue: asked.from, ids: [message.id] }} onClose={close} />
      ) : null}
      {asked?.verb === "replay" ? (
        <Confirm
          title={`Replay 1 message of ${queue}?`}
          verb="Replay"
          does={() => replay(asked.from, { id: message.id })}
          onDone={() => {
            said("Replayed as a new message");
            live.ask("stats", "actions", `queue:${queue}`);
          }}
          onClose={close}
        >
          It is put in again as a new message that names this one as its origin.
        </Confirm>
      ) : null}
    </div>
  );
}

function Payload({ message }: { message: Message }) {
  const [form, setForm] = useState("tree");
  const { payload, body } = message;
  return (
    <section className="panel padded stack" aria-label="Payload">
      <div className="row">
        <h2>Payload</h2>
        <span className="quiet small">{message.content_type}</span>
        {payload === undefined ? null : (
          <SegmentedControl
            className="push"
            size="xs"
            aria-label="How the payload is shown"
            value={form}
            onChange={setForm}
            data={[
              { value: "tree", label: "Tree" },
              { value: "raw", label: "Raw" },
            ]}
            transitionDuration={0}
          />
        )}
      </div>
      {payload !== undefined && form === "tree" ? (
        <JsonTree value={payload} />
      ) : (
        // It scrolls, so it has to be reached by keyboard.
        <pre className="code" tabIndex={0} aria-label="Raw payload" role="region">
          {payload === undefined ? bytes(body ?? "") : JSON.stringify(payload, null, 2)}
        </pre>
      )}
    </section>
  );
}

const SHOWN_MAX = 20_000;

/** Text as text; what is none, as hexadecimal digits. */
function bytes(base64: string): string {
  const raw = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  const more = raw.length > SHOWN_MAX ? `\n… ${count(raw.length)} bytes in all` : "";
  const part = raw.slice(0, SHOWN_MAX);
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(part) + more;
  } catch {
    return [...part].map((byte) => byte.toString(16).padStart(2, "0")).join(" ") + more;
  }
}

function Headers({ headers }: { headers: Record<string, string> }) {
  const entries = Object.entries(headers);
  if (entries.length === 0) return null;
  return (
    <section className="panel padded stack" aria-label="Headers">
      <h2>Headers</h2>
      <dl className="facts plain">
        {entries.map(([name, value]) => (
          <div key={name}>
            <dt className="mono">{name}</dt>
            <dd className="mono wrap">{value}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function TimeLine({ moments }: { moments: Moment[] }) {
  return (
    <ol className="timeline">
      {moments.map((moment, n) => (
        <li key={n} className={toneOf(moment)} data-testid="moment">
          <div className="row">
            <span className="strong">{moment.what}</span>
            {moment.attempt ? <span className="tag">attempt {moment.attempt}</span> : null}
            {moment.consumer ? <span className="quiet">{moment.consumer}</span> : null}
            <time className="quiet small push" dateTime={new Date(moment.at).toISOString()}>
              {exactly(moment.at)}
            </time>
          </div>
          {moment.detail ? <div className="wrap small">{moment.detail}</div> : null}
          {moment.traceback ? (
            <details className="small">
              <summary>Traceback</summary>
              <pre className="code" tabIndex={0} aria-label="Traceback" role="region">
                {moment.traceback}
              </pre>
            </details>
          ) : null}
        </li>
      ))}
    </ol>
  );
}

function toneOf({ what }: Moment): string | undefined {
  if (what === "failed" || what === "dead") return "bad";
  return what === "finished" ? "good" : undefined;
}
