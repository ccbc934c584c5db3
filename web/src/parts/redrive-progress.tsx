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
export function RedriveProgress(props: { id: string; expected?: number; onClose?: () => void }) {
  const { id, expected, onClose } = props;
  const { data: job, error } = useQuery(redrive(id));
  if (job === undefined) return error ? <ErrorNotice error={error} /> : <Waiting />;
  return (
    <div className="stack" data-testid="redrive-progress" data-state={job.state}>
      <Bar job={job} expected={expected} />
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

/** `expected`: how many a dry run found; else it is known only how many there are to look at. */
export function Bar({ job, expected }: { job: Redrive; expected?: number }) {
  const color = job.state === "failed" ? "red.8" : job.state === "cancelled" ? "gray.6" : "hold.6";
  return (
    <div>
      <div className="row small" role="status">
        <span className="strong">{word(job)}</span>
        <span className="push">{howFar(job, expected)}</span>
      </div>
      <Progress.Root size="md" transitionDuration={0}>
        <Progress.Section
          value={share(job, expected)}
          color={color}
          aria-label={`Redrive of ${job.dlq}`}
        />
      </Progress.Root>
    </div>
  );
}

function share({ state, redriven, looked, total }: Redrive, expected: number | undefined): number {
  if (state === "done") return 100;
  const [part, whole] = expected ? [redriven, expected] : [looked, total];
  return whole > 0 ? Math.min(100, (100 * part) / whole) : 0;
}

function howFar(job: Redrive, expected: number | undefined): string {
  const said = expected
    ? [`${count(job.redriven)} of ${counted(expected, "dead letter")}`]
    : [`${counted(job.redriven, "dead letter")} redriven`];
  if (!expected && job.state === "running") {
    said.push(`looked at ${count(job.looked)} of ${count(job.total)}`);
  }
  if (job.skipped > 0) said.push(`${count(job.skipped)} skipped`);
  if (job.missing > 0) said.push(`${count(job.missing)} were gone`);
  return said.join(", ");
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
