import { Button, Checkbox, PasswordInput } from "@mantine/core";
import { useState, type FormEvent } from "react";
import { keepKey } from "../api/key";
import { Mark } from "./top";

/** Asked for once; the server says whether it counts. */
export function KeyForm({ wasGiven, onKey }: { wasGiven: boolean; onKey: () => void }) {
  const [key, setKey] = useState("");
  const [remember, setRemember] = useState(false);
  function enter(event: FormEvent) {
    event.preventDefault();
    if (key.trim() === "") return;
    keepKey(key.trim(), remember);
    onKey();
  }
  return (
    <main className="main" style={{ maxWidth: "26rem", paddingBlockStart: "12vh" }}>
      <form className="panel padded stack" onSubmit={enter} aria-labelledby="key-title">
        <div className="row">
          <Mark />
          <h1 id="key-title">Holdfast</h1>
        </div>
        <p className="quiet" style={{ margin: 0 }}>
          This server asks for a key. <span className="mono">holdfast key create</span> makes one.
        </p>
        <PasswordInput
          label="Key"
          placeholder="hf_…"
          value={key}
          onChange={(event) => setKey(event.currentTarget.value)}
          error={wasGiven && key === "" ? "This key does not count (any more)." : undefined}
          autoComplete="off"
          ref={focus}
        />
        <Checkbox
          label="Remember it in this browser"
          checked={remember}
          onChange={(event) => setRemember(event.currentTarget.checked)}
        />
        <Button type="submit">Enter</Button>
      </form>
    </main>
  );
}

/** The only thing there is to do here. */
function focus(input: HTMLInputElement | null): void {
  input?.focus();
}
