import { Button, Progress } from "@mantine/core";
import { useMutation, useQuery } from "@tanstack/react-query";
import { cancelRedrive, identity, redrive } from "../api/queries";
import { may } from "../api/rights";
import type { Redrive } from "../api/types";
import { count, counted } from "../format";
import { useLive } from "../live/hooks";
import { ErrorNotice } from "./error-notice";
import { failed } from "./notify";
import { Waiting } from "./waiting";

/** How far a redrive is. Events tell when it has moved. */
export function RedriveProgress({ id, onClose }: { id: string; onClose?: () => void }) {
  const { data: job, error } = useQuery(redrive(id));
  if (job === undefined) return error ? <ErrorNotice error={error} /> : <Waiting />;
  return (
    <div className="stack" data-testid="redrive-progress" data-state={job.state}>
      <Bar job={job} />
      {job.error ? <div className="red wrap">{job.error}</div> : null}
      <div className="row">
        <span className="push" />
        <CancelRedrive job={job} />
        {onClose ? (
          <Button variant="default" onClick={onClose}>
            Close
          </Button>
        ) : null}
      </div>
    </div>
  );
}

export function Bar({ job }: { job: Redrive }) {
  const share = job.total > 0 ? Math.min(100, (100 * job.redriven) / job.total) : 100;
  const color = job.state === "failed" ? "red.8" : job.state === "cancelled" ? "gray.6" : "hold.6";
  return (
    <div>
      <div className="row small" role="status">
        <span className="strong">{word(job)}</span>
        <span className="push">
          {count(job.redriven)} of {counted(job.total, "dead letter")}
          {job.skipped > 0 ? `, ${count(job.skipped)} skipped` : ""}
          {job.missing > 0 ? `, ${count(job.missing)} were gone` : ""}
        </span>
      </div>
      <Progress.Root size="md" transitionDuration={0}>
        <Progress.Section value={share} color={color} aria-label={`Redrive of ${job.dlq}`} />
      </Progress.Root>
    </div>
  );
}

export function CancelRedrive({ job }: { job: Redrive }) {
  const live = useLive();
  const { data: who } = useQuery(identity);
  const cancel = useMutation({
    mutationFn: () => cancelRedrive(job.id),
    onSuccess: () => live.ask(`redrive:${job.id}`, "redrives"),
    onError: failed,
  });
  if (job.state !== "running" || !may(who, "admin", job.dlq)) return null;
  return (
    <Button
      variant="default"
      size="xs"
      className="red"
      loading={cancel.isPending}
      onClick={() => cancel.mutate()}
    >
      Cancel redrive
    </Button>
  );
}

function word({ state }: Redrive): string {
  return { running: "Running", done: "Done", cancelled: "Cancelled", failed: "Failed" }[state];
}
