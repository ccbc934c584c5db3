import { Button } from "@mantine/core";
import { useState } from "react";
import { counted } from "../format";

/**
 * A stack of cursors: forward by the server's cursor, back by those already seen. What is asked for
 * costs the same on the first page and on the thousandth.
 */
export interface Pages {
  after: string | null;
  number: number;
  next: (after: string) => void;
  back: () => void;
}

/** Begins anew when what is leafed through is another thing. */
export function usePages(of: string): Pages {
  const [state, setState] = useState<{ of: string; cursors: string[] }>({ of, cursors: [] });
  const cursors = state.of === of ? state.cursors : [];
  return {
    after: cursors.at(-1) ?? null,
    number: cursors.length + 1,
    next: (after) => setState({ of, cursors: [...cursors, after] }),
    back: () => setState({ of, cursors: cursors.slice(0, -1) }),
  };
}

interface Props {
  pages: Pages;
  shown: number;
  after: string | null | undefined;
  noun?: string;
  /** Of a search: how many this page went through. */
  looked?: number;
}

export function Paging({ pages, shown, after, noun = "message", looked }: Props) {
  if (pages.number === 1 && !after && looked === undefined) return null;
  return (
    <nav className="row small" aria-label="Paging">
      <span className="quiet">
        Page {pages.number}: {counted(shown, noun)}
        {looked === undefined ? "" : ` found among ${counted(looked, noun)}`}
        {looked !== undefined && after ? ", there are more to look at" : ""}
      </span>
      <Button
        className="push"
        size="compact-xs"
        variant="default"
        disabled={pages.number === 1}
        onClick={pages.back}
      >
        Back
      </Button>
      <Button
        size="compact-xs"
        variant="default"
        disabled={!after}
        onClick={() => after && pages.next(after)}
      >
        Next
      </Button>
    </nav>
  );
}
