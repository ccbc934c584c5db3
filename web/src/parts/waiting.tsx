import { Loader } from "@mantine/core";
import { useEffect, useState } from "react";

/** Shown only when it takes long enough to be noticed: what flashes is worse than nothing. */
export function Waiting() {
  const [isLong, setLong] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLong(true), 300);
    return () => clearTimeout(timer);
  }, []);
  return (
    <div className="empty" role="status">
      {isLong ? <Loader size="sm" role="img" aria-label="Loading" /> : null}
    </div>
  );
}
