/**
 * A table that shows the rows in sight and keeps room for the others. It stays a table: header cells,
 * row numbers and counts are there for those who do not see it.
 */
import { Checkbox } from "@mantine/core";
import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useRef, type ReactNode } from "react";

const ROW_PX = 36;

export interface Column<T> {
  title: string;
  /** In rem; one column without takes what is left. */
  width?: number;
  isNumber?: boolean;
  cell: (row: T) => ReactNode;
}

export interface Selection {
  chosen: ReadonlySet<string>;
  toggle: (id: string) => void;
  toggleAll: () => void;
}

interface Props<T> {
  label: string;
  rows: T[];
  columns: Column<T>[];
  idOf: (row: T) => string;
  selection?: Selection;
}

export function VirtualTable<T>({ label, rows, columns, idOf, selection }: Props<T>) {
  const region = useRef<HTMLDivElement>(null);
  // eslint-disable-next-line react-hooks/incompatible-library -- it is not memoised, nor need it be
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => region.current,
    estimateSize: () => ROW_PX,
    overscan: 8,
    initialRect: { width: 1000, height: 800 },
  });
  const items = virtual.getVirtualItems();
  const above = items[0]?.start ?? 0;
  const below = virtual.getTotalSize() - (items.at(-1)?.end ?? 0);
  const width = columns.reduce((all, column) => all + (column.width ?? 14), selection ? 3 : 0);
  const span = columns.length + (selection ? 1 : 0);
  return (
    <div className="scroll tall" ref={region} role="region" aria-label={label} tabIndex={0}>
      <table
        className="grid"
        aria-label={label}
        aria-rowcount={rows.length + 1}
        style={{ minWidth: `${width}rem` }}
      >
        <colgroup>
          {selection ? <col style={{ width: "3rem" }} /> : null}
          {columns.map((column) => (
            <col
              key={column.title}
              style={{ width: column.width ? `${column.width}rem` : "auto" }}
            />
          ))}
        </colgroup>
        <thead>
          <tr aria-rowindex={1}>
            {selection ? (
              <th scope="col">
                <Checkbox
                  size="xs"
                  aria-label="Select all of this page"
                  checked={rows.length > 0 && selection.chosen.size >= rows.length}
                  indeterminate={selection.chosen.size > 0 && selection.chosen.size < rows.length}
                  onChange={selection.toggleAll}
                />
              </th>
            ) : null}
            {columns.map((column) => (
              <th key={column.title} scope="col" className={column.isNumber ? "num" : undefined}>
                {column.title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          <Spacer height={above} span={span} />
          {items.map((item) => {
            const row = rows[item.index] as T;
            const id = idOf(row);
            return (
              <Row
                key={id}
                id={id}
                row={row}
                index={item.index + 2}
                columns={columns as Column<unknown>[]}
                isChosen={selection?.chosen.has(id)}
                toggle={selection?.toggle}
              />
            );
          })}
          <Spacer height={below} span={span} />
        </tbody>
      </table>
    </div>
  );
}

interface RowProps {
  id: string;
  row: unknown;
  index: number;
  columns: Column<unknown>[];
  isChosen: boolean | undefined;
  toggle: ((id: string) => void) | undefined;
}

const Row = memo(function Row({ id, row, index, columns, isChosen, toggle }: RowProps) {
  return (
    <tr aria-rowindex={index} data-testid={`row-${id}`}>
      {toggle ? (
        <td>
          <Checkbox
            size="xs"
            aria-label={`Select ${id}`}
            checked={isChosen ?? false}
            onChange={() => toggle(id)}
          />
        </td>
      ) : null}
      {columns.map((column) => (
        <td key={column.title} className={column.isNumber ? "num" : undefined}>
          {column.cell(row)}
        </td>
      ))}
    </tr>
  );
});

function Spacer({ height, span }: { height: number; span: number }) {
  if (height <= 0) return null;
  return (
    <tr className="spacer" aria-hidden="true">
      <td colSpan={span} style={{ height }} />
    </tr>
  );
}
