import {
  ActionIcon,
  Menu,
  Tooltip,
  useComputedColorScheme,
  useMantineColorScheme,
} from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { identity, settings } from "../api/queries";
import { useConnection } from "../live/hooks";
import { link } from "../router";

const PAGES = [
  ["", "Overview"],
  ["topics", "Topics"],
  ["redrives", "Redrives"],
  ["spark", "Spark"],
  ["actions", "Actions"],
] as const;

export function Top({ here, onLeave }: { here: string; onLeave: () => void }) {
  const page = here === "queues" ? "" : here;
  return (
    <header className="top">
      <a className="brand" href={link()}>
        <Mark />
        Holdfast
      </a>
      <nav className="nav" aria-label="Pages">
        {PAGES.map(([name, title]) => (
          <a
            key={name}
            href={name ? link(name) : link()}
            aria-current={page === name ? "page" : undefined}
          >
            {title}
          </a>
        ))}
      </nav>
      <div className="row push" style={{ flexWrap: "nowrap" }}>
        <LiveDot />
        <Scheme />
        <Person onLeave={onLeave} />
      </div>
    </header>
  );
}

export function Mark() {
  return (
    <svg width="20" height="20" viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="7" fill="#1f7d63" />
      <path d="M9 8v16M23 8v16M9 16h14" stroke="#fff" strokeWidth="4" strokeLinecap="round" />
    </svg>
  );
}

function LiveDot() {
  const { state } = useConnection();
  const word = { live: "Live", connecting: "Connecting", lost: "No connection" }[state];
  const tone = { live: "good", connecting: "", lost: "warn" }[state];
  return (
    <span className={`tag ${tone}`} data-testid="connection" data-state={state}>
      <span className="dot" aria-hidden="true" /> {word}
    </span>
  );
}

function Scheme() {
  const { setColorScheme } = useMantineColorScheme();
  const isDark = useComputedColorScheme("light") === "dark";
  const label = isDark ? "Light colours" : "Dark colours";
  return (
    <Tooltip label={label}>
      <ActionIcon
        variant="subtle"
        color="gray"
        aria-label={label}
        onClick={() => setColorScheme(isDark ? "light" : "dark")}
      >
        <svg width="16" height="16" viewBox="0 0 16 16" aria-hidden="true">
          <circle cx="8" cy="8" r="6" fill="none" stroke="currentColor" strokeWidth="1.5" />
          <path d="M8 2a6 6 0 0 1 0 12z" fill="currentColor" />
        </svg>
      </ActionIcon>
    </Tooltip>
  );
}

function Person({ onLeave }: { onLeave: () => void }) {
  const { data: who } = useQuery(identity);
  const { data: server } = useQuery({ ...settings, enabled: who?.queues.includes("*") ?? false });
  if (who === undefined) return null;
  const name = who.auth ? who.name || who.id || "key" : "no keys";
  return (
    <Menu position="bottom-end" withinPortal>
      <Menu.Target>
        <button type="button" className="tag" style={{ border: 0, cursor: "pointer" }}>
          {name}
        </button>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Label>
          {who.auth
            ? `May ${who.rights.join(", ")} on ${who.queues.join(", ")}`
            : "Anybody here may do anything"}
        </Menu.Label>
        {server ? (
          <Menu.Label>
            Holdfast {server.version} on {server.store}
          </Menu.Label>
        ) : null}
        <Menu.Item component="a" href="/docs">
          The API
        </Menu.Item>
        {who.auth ? <Menu.Item onClick={onLeave}>Forget the key</Menu.Item> : null}
      </Menu.Dropdown>
    </Menu>
  );
}
