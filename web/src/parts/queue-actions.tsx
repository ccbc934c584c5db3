/** What can be done to a queue as a whole. Not there at all for a key that may not. */
import { ActionIcon, Button, Menu } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { drop, identity, pause, purge, replay, resume } from "../api/queries";
import { may } from "../api/rights";
import type { Stats } from "../api/types";
import { count, counted } from "../format";
import { clock } from "../live/clock";
import { useLive } from "../live/hooks";
import { go, link } from "../router";
import { Confirm } from "./confirm";
import { said } from "./notify";

type Asked = "pause" | "resume" | "purge" | "delete" | "replay";
const HOUR_MS = 3_600_000;

export function QueueActions({ queue, stats }: { queue: string; stats: Stats }) {
  const [asked, setAsked] = useState<Asked>();
  const { data: who } = useQuery(identity);
  if (!may(who, "admin", queue)) return null;
  return (
    <div className="row" style={{ flexWrap: "nowrap" }}>
      <Button
        size="xs"
        variant="default"
        onClick={() => setAsked(stats.paused ? "resume" : "pause")}
      >
        {stats.paused ? "Resume" : "Pause"}
      </Button>
      <Menu position="bottom-end">
        <Menu.Target>
          <ActionIcon variant="default" size="md" aria-label="More actions">
            ⋯
          </ActionIcon>
        </Menu.Target>
        <Menu.Dropdown>
          <Menu.Item onClick={() => setAsked("replay")}>Replay the last hour…</Menu.Item>
          <Menu.Divider />
          <Menu.Item className="red" onClick={() => setAsked("purge")}>
            Purge…
          </Menu.Item>
          <Menu.Item className="red" onClick={() => setAsked("delete")}>
            Delete…
          </Menu.Item>
        </Menu.Dropdown>
      </Menu>
      {asked ? <Asking asked={asked} stats={stats} onClose={() => setAsked(undefined)} /> : null}
    </div>
  );
}

function Asking(props: { asked: Asked; stats: Stats; onClose: () => void }) {
  const { asked, stats, onClose } = props;
  const { queue } = stats;
  const live = useLive();
  const changed = (words: string) => {
    said(words);
    live.ask("stats", "queues", "actions", `queue:${queue}`, `dead:${queue}`);
  };
  const [since] = useState(() => clock.now() - HOUR_MS);
  switch (asked) {
    case "pause":
      return (
        <Confirm
          title={`Pause ${queue}?`}
          verb="Pause"
          does={() => pause(queue)}
          onDone={() => changed(`${queue} is paused`)}
          onClose={onClose}
        >
          Nothing is leased from it any more: {counted(stats.ready, "ready message")} will wait. The{" "}
          {count(stats.leased)} in processing may finish.
        </Confirm>
      );
    case "resume":
      return (
        <Confirm
          title={`Resume ${queue}?`}
          verb="Resume"
          does={() => resume(queue)}
          onDone={() => changed(`${queue} goes on`)}
          onClose={onClose}
        >
          {counted(stats.ready, "ready message")} can be leased again.
        </Confirm>
      );
    case "purge":
      return (
        <Confirm
          title={`Purge ${queue}?`}
          verb="Purge"
          typed={queue}
          isDanger
          does={async () => changed(`${counted((await purge(queue)).count, "message")} dropped`)}
          onClose={onClose}
        >
          Drops {counted(stats.ready + stats.delayed, "waiting message")} of {queue} without a
          trace. What is in processing and the dead letters stay.
        </Confirm>
      );
    case "delete":
      return (
        <Confirm
          title={`Delete ${queue}?`}
          verb="Delete"
          typed={queue}
          isDanger
          does={() => drop(queue)}
          onDone={() => {
            go(link());
            changed(`${queue} is deleted`);
          }}
          onClose={onClose}
        >
          Deletes {queue} with {counted(stats.ready + stats.delayed + stats.leased, "message")},{" "}
          {counted(stats.dead, "dead letter")} and its log of {count(stats.done)}.
        </Confirm>
      );
    case "replay":
      return (
        <Confirm
          title={`Replay the last hour of ${queue}?`}
          verb="Replay"
          does={async () => {
            const { messages } = await replay(queue, { since: Math.floor(since) });
            changed(`${counted(messages.length, "message")} replayed`);
          }}
          onClose={onClose}
        >
          Everything that {queue} finished in the last hour is put in again, as new messages that
          name their origin.
        </Confirm>
      );
  }
}
