"""The report as one HTML page, which needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from holdfast.spark.reports import svg
from holdfast.spark.reports.svg import Series

QUEUES_SHOWN = 6
CAUSES_SHOWN = 20
ROWS_SHOWN = 12
MEASURES = {"wait": "Waiting", "run": "Handling", "total": "End to end"}

Row = dict[str, Any]

STYLE = """
:root{--bg:#f7f8fa;--card:#fff;--ink:#1c2430;--soft:#5d6b7c;--line:#e3e7ec;--hot:#c92a2a;
--good:#2b8a3e;--k0:#1971c2;--k1:#e8890c;--k2:#2f9e44;--k3:#9c36b5;--k4:#c2255c;--k5:#0c8599;
--k6:#846358;--k7:#868e96}
@media(prefers-color-scheme:dark){:root{--bg:#12161c;--card:#1a2029;--ink:#e6eaf0;--soft:#9aa7b6;
--line:#2b333f;--hot:#ff6b6b;--good:#69db7c;--k0:#4dabf7;--k1:#ffa94d;--k2:#69db7c;--k3:#da77f2;
--k4:#f783ac;--k5:#3bc9db;--k6:#c0a396;--k7:#adb5bd}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1020px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;margin:0 0 2px}h2{font-size:18px;margin:0 0 2px}
h3{font-size:14px;margin:14px 0 4px;font-weight:600}
p{margin:0 0 10px;color:var(--soft)}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:18px 20px;
margin-top:16px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(120px,1fr));gap:10px;margin-top:18px}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px}
.tile b{display:block;font-size:21px;font-weight:650;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:13px}.bad b{color:var(--hot)}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(400px,1fr));gap:4px 26px}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{font-size:11.5px;fill:var(--ink)}svg .tick,svg .num{fill:var(--soft);font-size:11px}
.grid{stroke:var(--line);stroke-width:1}.bed{fill:var(--line);fill-opacity:.45}
.hot{fill:var(--hot)}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}.area{fill-opacity:.75}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:13px;color:var(--soft);margin:4px 0 6px}
.legend i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}
th,td{padding:6px 10px;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th{font-weight:600;color:var(--soft);font-size:12.5px;white-space:nowrap}
td.n,th.n{text-align:right;white-space:nowrap}td.w{overflow-wrap:anywhere;min-width:180px}
tr:last-child td{border-bottom:0}code{font-size:12.5px;color:var(--soft)}
.rising{color:var(--hot);font-weight:600}.falling,.gone{color:var(--good)}
footer{color:var(--soft);font-size:13px;margin-top:18px}
""" + "".join(
    f".c{n}{{stroke:var(--k{n});fill:var(--k{n})}}polyline.c{n}{{fill:none}}"
    f"rect.c{n},polygon.c{n}{{stroke:none}}i.c{n}{{background:var(--k{n})}}"
    for n in range(svg.COLOURS)
)


def page(title: str, figures: Any, facts: Row) -> str:
    """`facts`: of the lake and of the report itself."""
    tables = figures.tables
    span = (figures.start, figures.start + figures.steps * figures.step_ms)
    parts = [_head(title, figures, facts, span)]
    if tables["summary"]:
        parts += [
            _throughput(figures, span),
            _times(figures, span),
            _states(tables["states"], figures.queues),
            _amplification(tables["summary"]),
            _failures(tables, span, figures.step_ms),
            _storms(tables["storms"]),
            _keys(tables["keys"]),
            _consumers(tables["consumers"]),
        ]
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main>\n{body}\n"
        f"<footer>Made by Holdfast on {svg.clock(facts['made_at'])} UTC "
        f"from {facts['rows']:,} rows of {escape(facts['lake'])}. "
        "Percentiles are exact below 128 ms and within 0.8 % above.</footer>\n"
        "</main></body></html>\n"
    )


def duration(ms: float | None) -> str:
    """In the unit that fits."""
    if ms is None:
        return ""
    for limit, size, unit in (
        (1000, 1, "ms"),
        (60_000, 1000, "s"),
        (3_600_000, 60_000, "min"),
        (86_400_000, 3_600_000, "h"),
    ):
        if ms < limit:
            value = ms / size
            return f"{value:.0f} {unit}" if value >= 10 or size == 1 else f"{value:.1f} {unit}"
    return f"{ms / 86_400_000:.1f} d"


def short(number: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            value = number / size
            return f"{value:.0f}{unit}" if value >= 100 else f"{value:.3g}{unit}"
    return f"{number:.3g}" if number < 100 else f"{number:.0f}"


def _head(title: str, figures: Any, facts: Row, span: tuple[int, int]) -> str:
    head = f"<header><h1>{escape(title)}</h1>"
    if not figures.tables["summary"]:
        return f"{head}<p>The lake is empty: nothing has finished or died yet.</p></header>"
    said = facts["summary"]
    when = f"{svg.clock(facts['first'])} to {svg.clock(facts['last'])} UTC"
    tiles = [
        ("", _count(said["done"]), "messages done"),
        ("bad" if said["dead"] else "", _count(said["dead"]), "died"),
        ("", _times_of(said["amplification"]), "deliveries per done message"),
        ("", duration(said["total_p50_ms"]), "end to end, half of them"),
        ("", duration(said["total_p99_ms"]), "end to end, 99 in 100"),
        ("bad" if said["overdue"] else "", _count(said["overdue"]), "deliveries overdue"),
        ("bad" if said["storms"] else "", f"{said['storms']:,}", "minutes of retry storm"),
    ]
    shown = "".join(
        f'<div class="tile {kind}"><b>{value}</b><span>{name}</span></div>'
        for kind, value, name in tiles
    )
    queues = len(figures.queues)
    return (
        f"{head}<p>{queues} queue{'s' * (queues != 1)}, {when}</p>"
        f'<div class="tiles">{shown}</div></header>'
    )


def _throughput(figures: Any, span: tuple[int, int]) -> str:
    step_s = figures.step_ms / 1000
    shown, others = _foremost(figures.queues)
    series: list[Series] = []
    lines = [(queue, [queue]) for queue in shown]
    if others:
        lines.append(("others", others))
    for colour, (queue, names) in enumerate(lines):
        rows = [r for r in figures.tables["throughput"] if r["queue"] in names]
        by: dict[int, float] = {}
        for row in rows:
            by[row["at"]] = by.get(row["at"], 0.0) + row["done"] / step_s
        series.append(Series(queue, sorted(by.items()), colour))
    dead: dict[int, float] = {}
    for row in figures.tables["throughput"]:
        dead[row["at"]] = dead.get(row["at"], 0.0) + row["dead"] / step_s
    text = _section(
        "Throughput",
        f"Messages done a second, by queue, in steps of {duration(figures.step_ms)}.",
        _legend([(s.name, s.colour) for s in series])
        + svg.areas(
            series, "Messages done a second, by queue", _per_s, span=span, step=figures.step_ms
        ),
    )
    if any(dead.values()):
        plot = svg.areas(
            [Series("died", sorted(dead.items()), 4)],
            "Messages that died a second",
            _per_s,
            span=span,
            step=figures.step_ms,
            height=120,
        )
        text = text.replace("</section>", f"<h3>Died, a second</h3>{plot}</section>")
    return text


def _times(figures: Any, span: tuple[int, int]) -> str:
    shown, _ = _foremost(figures.queues)
    plots: list[str] = []
    for queue in shown:
        rows = [
            row
            for row in figures.tables["times_by_step"]
            if row["queue"] == queue and row["measure"] == "total"
        ]
        if not rows:
            continue
        series = [
            Series(name, _gapped([(r["at"], r[f"{name}_ms"]) for r in rows], figures.step_ms), c)
            for c, name in ((2, "p50"), (1, "p90"), (4, "p99"))
        ]
        wide = len(shown) == 1
        plot = svg.lines(
            series,
            f"End-to-end time in {queue}: half, 90 and 99 in 100",
            duration,
            span=span,
            width=svg.WIDTH if wide else 450,
            height=220 if wide else 190,
            log=True,
        )
        plots.append(f"<div><h3>{escape(queue)}</h3>{plot}</div>")
    legend = _legend([("half of them (p50)", 2), ("90 in 100", 1), ("99 in 100", 4)])
    kind = "two" if len(plots) > 1 else ""
    return _section(
        "How long it takes",
        "From enqueue to the end, over time; each line of the scale is ten times the one below.",
        f'{legend}<div class="{kind}">{"".join(plots)}</div><h3>Over the whole time</h3>'
        + _time_table(figures),
    )


def _time_table(figures: Any) -> str:
    head = ["Queue", "", "half", "90 in 100", "95 in 100", "99 in 100", "longest", "mean"]
    rows: list[list[str]] = []
    for queue in figures.queues[:ROWS_SHOWN]:
        for measure, name in MEASURES.items():
            for row in figures.tables["times"]:
                if (row["queue"], row["measure"]) == (queue, measure):
                    shares = [row[f"{p}_ms"] for p in ("p50", "p90", "p95", "p99", "max")]
                    cells = [duration(ms) for ms in (*shares, row["mean_ms"])]
                    first = escape(queue) if measure == "wait" else ""
                    rows.append([first, name, *cells])
    return _table(head, rows, numbers=range(2, 8))


def _states(rows: list[Row], queues: list[str]) -> str:
    by = {row["queue"]: row for row in rows}
    names = ("waiting_ms", "between_ms", "handling_ms")
    bars = [
        (queue, [by[queue][name] for name in names], duration(sum(by[queue][n] for n in names)))
        for queue in queues[:ROWS_SHOWN]
        if queue in by
    ]
    legend = _legend(
        [("waiting for its first delivery", 0), ("between deliveries", 1), ("last delivery", 2)]
    )
    plot = svg.bars(bars, "Mean time in each state, by queue", width=svg.WIDTH)
    return _section("Where the time goes", "The mean message of each queue.", legend + plot)


def _amplification(rows: list[Row]) -> str:
    rows = sorted((r for r in rows if r["amplification"]), key=lambda r: -r["amplification"])
    bars = [
        (
            row["queue"],
            [1.0, max(0.0, row["amplification"] - 1)],
            f"{_times_of(row['amplification'])}  ({row['deliveries']:,} for {row['done']:,})",
        )
        for row in rows[:ROWS_SHOWN]
    ]
    legend = _legend([("one that had to be", 0), ("what retries added", 1)])
    return _section(
        "What retries cost",
        "Deliveries for each message that was done; those of dead letters count too.",
        legend + svg.bars(bars, "Deliveries per done message, by queue", width=svg.WIDTH),
    )


def _failures(tables: dict[str, list[Row]], span: tuple[int, int], step: int) -> str:
    rows = tables["failures"]
    if not rows:
        return _section("What fails", "Nothing did.", "")
    shown = rows[:CAUSES_SHOWN]
    by: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for row in tables["failures_by_step"]:
        by.setdefault((row["queue"], row["fingerprint"]), []).append((row["at"], row["n"]))
    lines = [
        (f"{r['queue']}: {r['cause']}", by.get((r["queue"], r["fingerprint"]), []))
        for r in shown[:ROWS_SHOWN]
    ]
    cells = [
        [
            escape(row["queue"]),
            f"{escape(row['cause'] or '(not known)')} <code>{row['fingerprint'] or ''}</code>",
            f"{row['n']:,}",
            f"{row['dead']:,}",
            svg.clock(row["first"]),
            svg.clock(row["last"]),
            f'<span class="{row["trend"]}">{row["trend"]}</span>',
        ]
        for row in shown
    ]
    head = ["Queue", "Cause", "Messages", "died", "First seen", "Last seen", "Lately"]
    more = f" The {CAUSES_SHOWN} largest of {len(rows):,}." if len(rows) > len(shown) else ""
    return _section(
        "What fails",
        f"Messages by their last error, with what differs taken out of its text.{more}",
        svg.heat(lines, "Failures of each cause over time", span=span, step=step)
        + _table(head, cells, numbers=(2, 3), wide=(1,)),
    )


def _storms(rows: list[Row]) -> str:
    if not rows:
        return _section(
            "Retry storms", "None: retries were spread as the jitter means them to.", ""
        )
    cells = [
        [
            escape(row["queue"]),
            svg.clock(row["at"])[:16],
            f"{row['retries']:,}",
            f"{row['expected']:.1f}",
            f"{row['peak']:,}",
            _times_of(row["peak"] / row["expected"]),
        ]
        for row in rows[:ROWS_SHOWN]
    ]
    head = ["Queue", "Minute", "Retries", "expected a second", "in its worst second", ""]
    more = f" The {ROWS_SHOWN} worst of {len(rows):,}." if len(rows) > ROWS_SHOWN else ""
    return _section(
        "Retry storms",
        f"Minutes in which retries came all at once, and not spread as jitter spreads them.{more}",
        _table(head, cells, numbers=(2, 3, 4, 5)),
    )


def _keys(rows: list[Row]) -> str:
    if not rows:
        return ""
    slow = sorted(rows, key=lambda row: -row["mean_ms"])[:ROWS_SHOWN]
    noisy = sorted(rows, key=lambda row: (-row["n"], -row["retries"]))[:ROWS_SHOWN]
    several = len({row["queue"] for row in rows}) > 1

    def name(row: Row) -> str:
        return f"{row['queue']}: {row['key']}" if several else row["key"]

    slowest = svg.bars(
        [(name(r), [r["mean_ms"]], f"{duration(r['mean_ms'])}  of {r['n']:,}") for r in slow],
        "Keys with the longest mean time in a handler",
    )
    noisiest = svg.bars(
        [
            (name(r), [float(r["n"]), float(r["retries"])], f"{r['n']:,} + {r['retries']:,}")
            for r in noisy
        ],
        "Keys with most messages and retries",
    )
    return _section(
        "Keys",
        "Which ones are slow, and which ones are loud.",
        f'<div class="two"><div><h3>Slowest: mean time of the last delivery</h3>{slowest}</div>'
        f"<div><h3>Noisiest: messages, and retries on top</h3>{noisiest}</div></div>",
    )


def _consumers(rows: list[Row]) -> str:
    late = sorted((r for r in rows if r["overdue"]), key=lambda row: -row["overdue_rate"])
    if not late:
        return _section("Overdue", "No delivery ran past its deadline.", "")
    bars = [
        (
            f"{row['consumer']}",
            [row["overdue_rate"]],
            f"{row['overdue_rate']:.1%}  ({row['overdue']:,} of {row['deliveries']:,})",
        )
        for row in late[:ROWS_SHOWN]
    ]
    return _section(
        "Overdue",
        "Deliveries that ran past their deadline, as a share of all of a consumer.",
        svg.bars(bars, "Overdue rate by consumer", width=svg.WIDTH),
    )


def _foremost(queues: list[str]) -> tuple[list[str], list[str]]:
    return queues[:QUEUES_SHOWN], queues[QUEUES_SHOWN:]


def _gapped(points: Sequence[tuple[int, float | None]], step: int) -> svg.Points:
    """A gap in time is a gap in the line."""
    found: svg.Points = []
    for at, value in points:
        if found and at > found[-1][0] + 3 * step:
            found.append((found[-1][0] + step, None))
        found.append((at, value))
    return found


def _per_s(value: float) -> str:
    return f"{short(value)}/s" if value else "0"


def _count(number: int) -> str:
    return f"{number:,}" if number < 10_000_000 else short(number)


def _times_of(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}\u00d7"


def _legend(items: Sequence[tuple[str, int]]) -> str:
    shown = "".join(
        f'<span><i class="c{colour % svg.COLOURS}"></i>{escape(name)}</span>'
        for name, colour in items
    )
    return f'<div class="legend">{shown}</div>'


def _section(title: str, said: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2><p>{escape(said)}</p>{body}</section>"


def _table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Sequence[int] | range = (),
    wide: Sequence[int] = (),
) -> str:
    """Cells are HTML already."""

    def kind(n: int) -> str:
        return ' class="n"' if n in numbers else ' class="w"' if n in wide else ""

    top = "".join(f"<th{kind(n)}>{name}</th>" for n, name in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td{kind(n)}>{cell}</td>" for n, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'
