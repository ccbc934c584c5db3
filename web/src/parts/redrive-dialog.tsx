/**
 * Puts dead letters back, with care: how many is asked of the server by a dry run of the very same
 * request, then it is confirmed, then it runs in the background and shows how far it is.
 */
import { Button, Modal, SegmentedControl, Textarea } from "@mantine/core";
import { useMutation, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { countRedrive, message, startRedrive } from "../api/queries";
import { sourceOf } from "../api/rights";
import type { Json, RedriveAsk } from "../api/types";
import { count, counted } from "../format";
import { useLive } from "../live/hooks";
import { ErrorNotice } from "./error-notice";
import { RedriveProgress } from "./redrive-progress";

interface Props {
  /** Which ones; nothing else is changed by this dialog but the payload. */
  ask: RedriveAsk;
  /** "with NoRoute: no route to <n>", or nothing for all of them. */
  which?: string;
  onClose: () => void;
  onDone?: () => void;
}

export function RedriveDialog({ ask, which, onClose, onDone }: Props) {
  const [isEdited, setEdited] = useState(false);
  const [text, setText] = useState<string>();
  const [running, setRunning] = useState<{ id: string; expected: number | undefined }>();
  const live = useLive();
  const only = ask.ids?.length === 1 ? ask.ids[0] : undefined;
  const queue = sourceOf(ask.dlq_queue);
  const one = useQuery({
    ...message(ask.dlq_queue, only ?? ""),
    enabled: only !== undefined && isEdited,
    staleTime: Infinity,
  });
  const given = one.data?.message.payload;
  const start = only ? (given === undefined ? "" : JSON.stringify(given, null, 2)) : "{\n  \n}";
  const edit = isEdited ? parsed(text ?? start) : undefined;
  const full: RedriveAsk =
    edit?.value === undefined ? ask : { ...ask, [only ? "payload" : "merge"]: edit.value };
  const known = useQuery({
    queryKey: ["count redrive", full],
    queryFn: () => countRedrive(full),
    staleTime: 0,
    gcTime: 0,
    enabled: running === undefined && (!isEdited || edit?.value !== undefined),
    meta: { subjects: [`dead:${queue}`] },
  });
  const many = known.data?.redriven;
  const begin = useMutation({
    mutationFn: () => startRedrive(full),
    onSuccess: ({ id }) => {
      setRunning({ id, expected: many });
      live.ask("redrives", `dead:${queue}`, `queue:${queue}`, "stats");
      onDone?.();
    },
  });
  const title = running
    ? `Redrive of ${queue}`
    : many === undefined
      ? `Redrive dead letters of ${queue}?`
      : `Redrive ${counted(many, "dead letter")} of ${queue}?`;
  return (
    <Modal
      opened
      onClose={onClose}
      title={title}
      centered
      size="lg"
      transitionProps={{ duration: 0 }}
      closeButtonProps={{ "aria-label": "Close" }}
    >
      {running ? (
        <RedriveProgress {...running} onClose={onClose} />
      ) : (
        <div className="stack">
          <div className="wrap">
            {which ? <>Those {which}. </> : null}
            They go back to <b>{known.data?.to ?? queue}</b> with all their attempts before them.
          </div>
          <SegmentedControl
            aria-label="Payload"
            size="xs"
            value={isEdited ? "edit" : "as is"}
            onChange={(value) => setEdited(value === "edit")}
            data={[
              { value: "as is", label: "As they are" },
              { value: "edit", label: only ? "With an edited payload" : "With a merge patch" },
            ]}
            transitionDuration={0}
          />
          {isEdited ? (
            <Textarea
              label={only ? "Payload" : "JSON merge patch for every payload"}
              description={
                only ? undefined : "Fields are set, or removed where they are null; the rest stays."
              }
              value={text ?? start}
              onChange={(event) => setText(event.currentTarget.value)}
              error={edit?.error}
              autosize
              minRows={4}
              maxRows={16}
              spellCheck={false}
              styles={{ input: { fontFamily: "var(--mantine-font-family-monospace)" } }}
            />
          ) : null}
          {known.error ? <ErrorNotice error={known.error} /> : null}
          {begin.error ? <ErrorNotice error={begin.error} /> : null}
          <div className="row">
            <Button variant="default" className="push" onClick={onClose}>
              Cancel
            </Button>
            <Button
              data-autofocus
              data-testid="confirm-redrive"
              disabled={!many || (isEdited && edit?.value === undefined)}
              loading={begin.isPending}
              onClick={() => begin.mutate()}
            >
              {many === undefined ? "Redrive" : `Redrive ${count(many)}`}
            </Button>
          </div>
        </div>
      )}
    </Modal>
  );
}

function parsed(text: string): { value?: Json; error?: string } {
  try {
    return { value: JSON.parse(text) as Json };
  } catch (error) {
    return { error: `Not JSON: ${(error as Error).message}` };
  }
}
