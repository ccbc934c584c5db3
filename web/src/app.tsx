/** Who is there, whether the server is, and which page is asked for. */
import { QueryCache, QueryClient, QueryClientProvider, useQuery } from "@tanstack/react-query";
import { lazy, Suspense, useCallback, useEffect, useRef, useState, type ReactNode } from "react";
import { ApiError, Unreachable } from "./api/client";
import { forgetKey, readKey } from "./api/key";
import { identity } from "./api/queries";
import { LiveContext } from "./live/hooks";
import { Live } from "./live/live";
import { Overview } from "./pages/overview";
import { Banner } from "./parts/banner";
import { ErrorNotice } from "./parts/error-notice";
import { KeyForm } from "./parts/key-form";
import { Top } from "./parts/top";
import { Waiting } from "./parts/waiting";
import { parseRoute, useHash, type Route } from "./router";

const QueuePage = lazy(() => import("./pages/queue"));
const MessagePage = lazy(() => import("./pages/message"));
const Topics = lazy(() => import("./pages/topics"));
const Redrives = lazy(() => import("./pages/redrives"));
const Spark = lazy(() => import("./pages/spark"));
const ReportPage = lazy(() => import("./pages/report"));
const Actions = lazy(() => import("./pages/actions"));

const AGAIN_MS = 2000;

function makeQueries(onRefused: () => void): QueryClient {
  return new QueryClient({
    queryCache: new QueryCache({
      onError: (error) => {
        if (error instanceof ApiError && error.status === 401) onRefused();
      },
    }),
    // What changes is pushed; who was cut off asks for everything when the stream is back.
    defaultOptions: {
      queries: {
        retry: false,
        refetchOnWindowFocus: false,
        networkMode: "always",
        gcTime: 60_000,
        refetchInterval: ({ state }) => (isPassing(state.error) ? AGAIN_MS : false),
      },
      mutations: { retry: false, networkMode: "always" },
    },
  });
}

/** It may well work in a moment: nobody answers, or the store does not. */
function isPassing(error: Error | null): boolean {
  return error instanceof Unreachable || (error instanceof ApiError && error.status >= 500);
}

export function App() {
  const [isRefused, setRefused] = useState(false);
  const [made, setMade] = useState(0);
  const refuse = useCallback(() => setRefused(true), []);
  // A new key sees other things: nothing that the old one saw is kept.
  const enter = () => {
    setRefused(false);
    setMade(made + 1);
  };
  const leave = () => {
    forgetKey();
    enter();
  };
  if (isRefused) return <KeyForm wasGiven={readKey() !== null} onKey={enter} />;
  return <Session key={made} onRefused={refuse} onLeave={leave} />;
}

function Session({ onRefused, onLeave }: { onRefused: () => void; onLeave: () => void }) {
  const [queries] = useState(() => makeQueries(onRefused));
  return (
    <QueryClientProvider client={queries}>
      <Who onRefused={onRefused} queries={queries} onLeave={onLeave} />
    </QueryClientProvider>
  );
}

function Who(props: { queries: QueryClient; onRefused: () => void; onLeave: () => void }) {
  const { queries, onRefused, onLeave } = props;
  const { data: who, error } = useQuery(identity);
  const [live] = useState(() => new Live(queries, onRefused));
  const isKnown = who !== undefined;
  useEffect(() => {
    if (!isKnown) return undefined;
    live.start();
    return () => live.stop();
  }, [live, isKnown]);
  if (!isKnown) return error ? <ErrorNotice error={error} /> : <Waiting />;
  return (
    <LiveContext value={live}>
      <Frame onLeave={onLeave} />
    </LiveContext>
  );
}

function Frame({ onLeave }: { onLeave: () => void }) {
  const route = parseRoute(useHash());
  const main = useRef<HTMLElement>(null);
  const way = pathOf(route).join("/");
  const first = useRef(way);
  useEffect(() => {
    // As a new page would: who reads by ear or by keyboard begins at its top.
    if (first.current !== way) main.current?.focus({ preventScroll: true });
    first.current = way;
  }, [way]);
  return (
    <Banner>
      <a className="skip" href="#main" onClick={(event) => skip(event, main.current)}>
        Skip to content
      </a>
      <Top here={route.parts[0] ?? ""} onLeave={onLeave} />
      <main className="main" id="main" tabIndex={-1} ref={main}>
        <Suspense fallback={<Waiting />}>{pageOf(route)}</Suspense>
      </main>
    </Banner>
  );
}

/** The tabs of a queue are one page: who moves from one to the next by arrow keys stays there. */
function pathOf({ parts }: Route): string[] {
  return parts[0] === "queues" && parts[2] !== "messages" ? parts.slice(0, 2) : parts;
}

function skip(event: React.MouseEvent, main: HTMLElement | null): void {
  event.preventDefault();
  main?.focus();
}

function pageOf({ parts, query }: Route): ReactNode {
  const [first, second, third, fourth] = parts;
  if (first === "queues" && second && third === "messages" && fourth) {
    return <MessagePage key={fourth} queue={second} id={fourth} />;
  }
  if (first === "queues" && second) {
    return <QueuePage key={second} name={second} tab={third ?? ""} query={query} />;
  }
  if (first === "topics") return <Topics />;
  if (first === "redrives") return <Redrives />;
  if (first === "spark" && second === "reports" && third) return <ReportPage id={third} />;
  if (first === "spark") return <Spark />;
  if (first === "actions") return <Actions queue={query.get("queue") ?? undefined} />;
  return <Overview />;
}
