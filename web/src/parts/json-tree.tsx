import type { Json } from "../api/types";

const OPEN_DEPTH = 3;
const MANY = 50;

/** JSON as a tree that folds: by mouse, by keyboard, and by ear, as these are plain details. */
export function JsonTree({ value }: { value: Json }) {
  return (
    <div className="code tree" role="region" aria-label="Payload as a tree" tabIndex={0}>
      <Node value={value} depth={0} />
    </div>
  );
}

function Node({ name, value, depth }: { name?: string; value: Json; depth: number }) {
  const label = name === undefined ? null : <span className="name">{name}: </span>;
  if (value === null || typeof value !== "object") {
    return (
      <div className="leaf">
        {label}
        <span className={typeof value === "string" ? "string" : "other"}>
          {JSON.stringify(value)}
        </span>
      </div>
    );
  }
  const entries = Object.entries(value);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  if (entries.length === 0) {
    return (
      <div className="leaf">
        {label}
        <span className="quiet">
          {open}
          {close}
        </span>
      </div>
    );
  }
  return (
    <details open={depth < OPEN_DEPTH && entries.length <= MANY}>
      <summary>
        {label}
        <span className="quiet">
          {open}
          {entries.length}
          {close}
        </span>
      </summary>
      {entries.map(([key, each]) => (
        <Node key={key} name={key} value={each} depth={depth + 1} />
      ))}
    </details>
  );
}
