/** Everything that the page asks for, each with the subjects whose events make it old. */
import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { clock } from "../live/clock";
import { newer, STATS_KEY } from "../live/live";
import { rates } from "../live/rates";
import { get, path, post, remove } from "./client";
import type * as t from "./types";

const WHOLE = { limit: 1000 };
/** Times of handling are in no event, and need not be fresher than this. */
const CHART_MS = 15_000;

export const identity = queryOptions({
  queryKey: ["identity"],
  queryFn: ({ signal }) => get<t.Identity>(path`/identity`, {}, signal),
  staleTime: Infinity,
});

export const settings = queryOptions({
  queryKey: ["settings"],
  queryFn: async ({ signal }) => {
    const found = await get<t.Settings>(path`/settings`, {}, signal);
    clock.hear(found.now);
    return found;
  },
  staleTime: Infinity,
});

export const stats = queryOptions({
  queryKey: STATS_KEY,
  queryFn: async ({ client, signal }) => {
    const asOf = performance.now();
    const found = await get<{ stats: t.Stats[] }>(path`/stats`, WHOLE, signal);
    const at = clock.now();
    for (const each of found.stats) rates.hear(each, at);
    const shown = client.getQueryData<t.Stats[]>(STATS_KEY);
    return newer(
      found.stats.map((each) => ({ ...each, at, asOf })),
      shown,
    );
  },
  meta: { subjects: ["stats"] },
});

export const queues = queryOptions({
  queryKey: ["queues"],
  queryFn: async ({ signal }) =>
    (await get<{ queues: t.QueueDoc[] }>(path`/queues`, WHOLE, signal)).queues,
  meta: { subjects: ["queues"] },
});

export const history = queryOptions({
  queryKey: ["history"],
  queryFn: ({ signal }) => get<t.History>(path`/history`, {}, signal),
  meta: { subjects: ["history"] },
});

export const queueHistory = (queue: string) =>
  queryOptions({
    queryKey: ["history", queue],
    queryFn: ({ signal }) => get<t.History>(path`/history`, { queue }, signal),
    refetchInterval: CHART_MS,
  });

export const queue = (name: string) =>
  queryOptions({
    queryKey: ["queue", name],
    queryFn: ({ signal }) => get<t.QueueDoc>(path`/queues/${name}`, {}, signal),
    meta: { subjects: ["queues"] },
  });

export interface Filters {
  text?: string;
  key?: string;
  type?: string;
  code?: string;
  reason?: string;
  fingerprint?: string;
  header?: string[];
  field?: string[];
  since?: number;
  newest?: boolean;
}

export const browse = (
  name: string,
  state: t.BrowseState,
  filters: Filters,
  after: string | null,
  limit: number,
) =>
  queryOptions({
    queryKey: ["browse", name, state, filters, after, limit],
    queryFn: async ({ signal }) => {
      const query = { ...filters, state, after, limit };
      const page = await get<t.Page>(path`/queues/${name}/messages`, query, signal);
      if (page.now) clock.hear(page.now);
      return page;
    },
    placeholderData: keepPreviousData,
    meta: { subjects: [`queue:${name.replace(/\.dlq$/, "")}`] },
  });

export const message = (name: string, id: string) =>
  queryOptions({
    queryKey: ["message", name, id],
    queryFn: async ({ signal }) => {
      const found = await get<t.Detail>(path`/queues/${name}/messages/${id}`, {}, signal);
      if (found.now) clock.hear(found.now);
      return found;
    },
    meta: { subjects: [`queue:${name.replace(/\.dlq$/, "")}`] },
  });

export const failures = (name: string) =>
  queryOptions({
    queryKey: ["failures", name],
    queryFn: ({ signal }) => get<t.Failures>(path`/queues/${name}/failures`, {}, signal),
    meta: { subjects: [`dead:${name}`] },
  });

export const partitions = (name: string) =>
  queryOptions({
    queryKey: ["partitions", name],
    queryFn: async ({ signal }) =>
      (await get<{ partitions: t.Partition[] }>(path`/queues/${name}/partitions`, {}, signal))
        .partitions,
    meta: { subjects: [`queue:${name}`] },
  });

export const consumers = (name: string) =>
  queryOptions({
    queryKey: ["consumers", name],
    queryFn: ({ signal }) =>
      get<{ consumers: t.Consumer[]; looked?: number; now?: number }>(
        path`/queues/${name}/consumers`,
        {},
        signal,
      ),
    meta: { subjects: [`queue:${name}`] },
  });

export const topics = queryOptions({
  queryKey: ["topics"],
  queryFn: async ({ signal }) =>
    (await get<{ topics: t.Topic[] }>(path`/topics`, WHOLE, signal)).topics,
  meta: { subjects: ["topics"] },
});

export const redrives = queryOptions({
  queryKey: ["redrives"],
  queryFn: async ({ signal }) =>
    (await get<{ redrives: t.Redrive[] }>(path`/redrives`, {}, signal)).redrives,
  meta: { subjects: ["redrives"] },
});

export const redrive = (id: string) =>
  queryOptions({
    queryKey: ["redrive", id],
    queryFn: ({ signal }) => get<t.Redrive>(path`/redrives/${id}`, {}, signal),
    meta: { subjects: [`redrive:${id}`] },
  });

export const actions = (queue: string | undefined, after: string | null) =>
  queryOptions({
    queryKey: ["actions", queue, after],
    queryFn: ({ signal }) =>
      get<{ actions: t.Action[]; after?: string | null }>(
        path`/actions`,
        { queue, after, limit: 100 },
        signal,
      ),
    placeholderData: keepPreviousData,
    meta: { subjects: ["actions"] },
  });

export const pipelines = queryOptions({
  queryKey: ["spark"],
  queryFn: async ({ signal }) =>
    (await get<{ pipelines: t.Pipeline[] }>(path`/spark`, {}, signal)).pipelines,
  refetchInterval: CHART_MS,
  meta: { subjects: ["spark"] },
});

export const reports = queryOptions({
  queryKey: ["reports"],
  queryFn: async ({ signal }) =>
    (await get<{ reports: t.Report[] }>(path`/reports`, {}, signal)).reports,
  meta: { subjects: ["spark"] },
});

export const report = (id: string) =>
  queryOptions({
    queryKey: ["report", id],
    queryFn: ({ signal }) => get<t.Report>(path`/reports/${id}`, {}, signal),
    staleTime: Infinity,
  });

// What changes something

export const pause = (name: string) => post(path`/queues/${name}/pause`);
export const resume = (name: string) => post(path`/queues/${name}/resume`);
export const purge = (name: string) => post<{ count: number }>(path`/queues/${name}/purge`);
export const drop = (name: string) => remove(path`/queues/${name}`, { force: true });
// One answer holds as many messages as the server's limit of bytes allows.
export const replay = async (
  name: string,
  ask: { id?: string; since?: number; until?: number; after?: string },
): Promise<{ messages: t.Message[] }> => {
  const { messages, after, until } = await post<{
    messages: t.Message[];
    after?: string;
    until?: number;
  }>(path`/queues/${name}/replay`, ask);
  if (!after) return { messages };
  const rest = await replay(name, { ...ask, after, until });
  return { messages: [...messages, ...rest.messages] };
};
export const countRedrive = (ask: t.RedriveAsk) =>
  post<t.Redriven>(path`/redrive`, { ...ask, dry_run: true });
export const startRedrive = (ask: t.RedriveAsk) => post<t.Redrive>(path`/redrives`, ask);
export const cancelRedrive = (id: string) => post<t.Redrive>(path`/redrives/${id}/cancel`);
