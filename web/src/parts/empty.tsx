import type { ReactNode } from "react";

/** Nothing to see, and what to do about it. */
export function Empty({ children, hint }: { children: ReactNode; hint?: string }) {
  return (
    <div className="empty" role="status">
      <p>{children}</p>
      {hint ? <pre className="code">{hint}</pre> : null}
    </div>
  );
}
