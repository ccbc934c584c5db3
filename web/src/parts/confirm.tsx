import { Button, Modal, TextInput } from "@mantine/core";
import { useMutation } from "@tanstack/react-query";
import { useState, type FormEvent, type ReactNode } from "react";
import { failed } from "./notify";

interface Props {
  title: string;
  children: ReactNode;
  verb: string;
  /** What cannot be taken back wants this word typed. */
  typed?: string;
  isDanger?: boolean;
  does: () => Promise<unknown>;
  onDone?: () => void;
  onClose: () => void;
}

/** Asks before something is done, naming what and how many. */
export function Confirm(props: Props) {
  const { title, children, verb, typed, isDanger, does, onDone, onClose } = props;
  const [word, setWord] = useState("");
  const doing = useMutation({
    mutationFn: does,
    onSuccess: () => {
      onClose();
      onDone?.();
    },
    onError: (error) => {
      onClose();
      failed(error);
    },
  });
  const isReady = typed === undefined || word === typed;
  function submit(event: FormEvent) {
    event.preventDefault();
    if (isReady && !doing.isPending) doing.mutate();
  }
  return (
    <Modal
      opened
      onClose={onClose}
      title={title}
      centered
      transitionProps={{ duration: 0 }}
      closeButtonProps={{ "aria-label": "Close" }}
    >
      <form className="stack" onSubmit={submit}>
        <div>{children}</div>
        {typed === undefined ? null : (
          <TextInput
            label={`Type ${typed} to confirm`}
            value={word}
            onChange={(event) => setWord(event.currentTarget.value)}
            autoComplete="off"
            data-autofocus
          />
        )}
        <div className="row">
          <Button variant="default" className="push" onClick={onClose}>
            Cancel
          </Button>
          <Button
            type="submit"
            color={isDanger ? "red.9" : undefined}
            disabled={!isReady}
            loading={doing.isPending}
          >
            {verb}
          </Button>
        </div>
      </form>
    </Modal>
  );
}
