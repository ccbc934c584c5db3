import { CloseButton, TextInput } from "@mantine/core";
import { useState, type FormEvent } from "react";
import { isId } from "../search";
import { go, link } from "../router";

interface Props {
  queue: string;
  value: string;
  onSearch: (line: string) => void;
}

/** Searches when Enter is pressed: each look goes through thousands of messages on the server. */
export function SearchBox({ queue, value, onSearch }: Props) {
  const [line, setLine] = useState(value);
  function search(event: FormEvent) {
    event.preventDefault();
    if (isId(line)) go(link("queues", queue, "messages", line.trim().toLowerCase()));
    else onSearch(line.trim());
  }
  function clear() {
    setLine("");
    onSearch("");
  }
  return (
    <form role="search" onSubmit={search} style={{ flex: "1 1 18rem", maxWidth: "40rem" }}>
      <TextInput
        size="xs"
        aria-label="Search messages"
        placeholder="id, text, key:… type:… code:… header:name=value field:path=value"
        value={line}
        onChange={(event) => setLine(event.currentTarget.value)}
        rightSection={
          line ? <CloseButton size="xs" aria-label="Clear the search" onClick={clear} /> : null
        }
      />
    </form>
  );
}
