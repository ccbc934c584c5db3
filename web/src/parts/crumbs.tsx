/** The way back up. */
export function Crumbs({ steps }: { steps: [string, string][] }) {
  return (
    <nav aria-label="Where you are" className="row small">
      {steps.map(([word, href], n) => (
        <span key={href} className="row" style={{ gap: "0.35rem" }}>
          {n > 0 ? <span className="quiet">/</span> : null}
          <a href={href}>{word}</a>
        </span>
      ))}
    </nav>
  );
}
