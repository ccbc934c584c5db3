/** Which columns a state of messages has, and what stands in them. */
import type { Entry, Message } from "../api/types";
import { clockTime, count, duration, exactly, shortId } from "../format";
import { link } from "../router";
import { Ago } from "./age";
import { Countdown, ToGo } from "./countdown";
import type { Column } from "./virtual-table";

type State = "ready" | "delayed" | "processing" | "log" | "dead";

export function columnsOf(queue: string, state: State): Column<Entry>[] {
  const id: Column<Entry> = {
    title: "Message",
    width: 9.5,
    cell: ({ message }) => (
      <a className="mono" href={link("queues", queue, "messages", message.id)} title={message.id}>
        {shortId(message.id)}
      </a>
    ),
  };
  return [id, ...OWN[state](queue)];
}

const KEY: Column<Entry> = {
  title: "Key",
  width: 9,
  cell: ({ message }) => message.key ?? <None />,
};
const TYPE: Column<Entry> = {
  title: "Type",
  width: 8,
  cell: ({ message }) => message.type ?? <None />,
};
const ATTEMPT: Column<Entry> = {
  title: "Attempt",
  width: 5.5,
  isNumber: true,
  cell: ({ message }) => count(message.attempts),
};
const PRIORITY: Column<Entry> = {
  title: "Priority",
  width: 5.5,
  isNumber: true,
  cell: ({ message }) => message.priority,
};
const PAYLOAD: Column<Entry> = {
  title: "Payload",
  cell: ({ message }) => <span className="mono quiet">{preview(message)}</span>,
};
const ENQUEUED: Column<Entry> = {
  title: "Enqueued",
  width: 9,
  cell: ({ message }) => <Ago at={message.enqueued_at} />,
};

const OWN: Record<State, (queue: string) => Column<Entry>[]> = {
  ready: () => [ENQUEUED, KEY, TYPE, PRIORITY, ATTEMPT, PAYLOAD],
  delayed: () => [
    {
      title: "To go",
      width: 7,
      isNumber: true,
      cell: ({ message }) => <ToGo at={message.available_at} />,
    },
    KEY,
    TYPE,
    ATTEMPT,
    { title: "Last error", width: 14, cell: ({ message }) => lastError(message) },
    PAYLOAD,
  ],
  processing: (queue) => [
    {
      title: "Time left",
      width: 7,
      isNumber: true,
      cell: (entry) => <Countdown deadline={entry.deadline} about={`queue:${queue}`} />,
    },
    { title: "Consumer", width: 12, cell: ({ owner }) => owner ?? <None /> },
    {
      title: "Leased at",
      width: 9,
      // A time that stands still: one thing that ticks in a row is enough.
      cell: ({ leased_at: at }) =>
        at ? <span title={exactly(at)}>{clockTime(at)}</span> : <None />,
    },
    ATTEMPT,
    KEY,
    TYPE,
    PAYLOAD,
  ],
  dead: () => [
    {
      title: "Died",
      width: 9,
      cell: ({ message }) => (message.dead_at ? <Ago at={message.dead_at} /> : <None />),
    },
    { title: "Error", width: 20, cell: ({ message }) => lastError(message) },
    KEY,
    TYPE,
    ATTEMPT,
    PAYLOAD,
  ],
  log: () => [
    {
      title: "Finished",
      width: 9,
      cell: ({ finished }) => (finished ? <Ago at={finished.finished_at} /> : <None />),
    },
    {
      title: "Status",
      width: 8,
      cell: ({ finished }) =>
        finished?.status === "COMPLETED" ? (
          <span className="tag good">completed</span>
        ) : (
          <span className="tag warn" title={finished?.status}>
            with errors
          </span>
        ),
    },
    { title: "Consumer", width: 11, cell: ({ finished }) => finished?.consumer ?? <None /> },
    {
      title: "Took",
      width: 6,
      isNumber: true,
      cell: ({ finished }) =>
        finished?.last_leased_at ? (
          duration((finished.finished_at - finished.last_leased_at) / 1000)
        ) : (
          <None />
        ),
    },
    KEY,
    TYPE,
    PAYLOAD,
  ],
};

function None() {
  return <span className="quiet">—</span>;
}

function lastError(message: Message) {
  const error = message.errors?.at(-1);
  if (error === undefined) return message.reason ? message.reason : <None />;
  return (
    <span title={`${exactly(error.at)} ${error.code}: ${error.message}`}>
      <b>{error.code}</b> <span className="quiet">{error.message}</span>
    </span>
  );
}

const PREVIEW = 160;

function preview(message: Message): string {
  if (message.payload !== undefined) return JSON.stringify(message.payload).slice(0, PREVIEW);
  return `${message.content_type}, ${count(Math.floor(((message.body?.length ?? 0) * 3) / 4))} bytes`;
}
