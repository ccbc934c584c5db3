"""What the pages say about the code is so: links, file names, layers, limits."""

import re
import tomllib
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from holdfast import app
from holdfast.model import message, policy, settings
from holdfast.model.policy import DEFAULTS
from holdfast.queue import checks, queue
from holdfast.rules import outcome
from holdfast.stores.sql.store import EVENTS_KEPT
from holdfast.stores.sqlite import leasing
from holdfast.work import sweeper, worker

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
OPERATIONS = (ROOT / "docs/operations.md").read_text()


def links(page: Path) -> list[str]:
    def walk(tokens: list[Token]) -> list[str]:
        return [
            href
            for token in tokens
            for href in [str(token.attrs.get("href", "")), *walk(token.children or [])]
            if href
        ]

    return walk(MarkdownIt().parse(page.read_text()))


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for href in links(page):
        if not href.startswith(("http:", "https:", "mailto:")):
            path, _, anchor = href.partition("#")
            target = (page.parent / path) if path else page
            assert target.exists(), f"{page.name}: {href}"
            assert not anchor or anchor in anchors(target), f"{page.name}: {href}"


def test_architecture_names_files_that_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for name in re.findall(r"`((?:[\w/]+/)?\w+\.py)(?: \w+)?`", text):
        assert any((base / name).exists() for base in (ROOT, ROOT / "src/holdfast")), name


def test_architecture_draws_the_layers_that_the_linter_holds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    drawing = (ROOT / "ARCHITECTURE.md").read_text().split("```")[1]
    drawn = [
        {re.sub(r"(\.py|/)$", "", name) for name in re.findall(r"\w+(?:\.py|/)", line)}
        for line in drawing.splitlines()
        if not line.startswith((" ", "`")) and line
    ]
    assert drawn == [set(layer.split(" | ")) for layer in layers if layer != "__main__"]


@pytest.mark.parametrize(
    "said",
    [
        f"| payload | {(DEFAULTS.payload_max or 0) // 1024**2} MiB",
        f"{checks.HEADERS_MAX:,} characters",
        f"| {checks.TEXT_MAX:,} characters |",
        f"{message.NAME_MAX} characters: letters",
        f"| 0 to {message.PRIORITY_MAX} |",
        f"{outcome.RESULT_MAX // 1024} KiB as JSON",
        f"newest {message.ERRORS_MAX}, each up to {message.ERROR_TEXT_MAX:,} characters",
        f"| {queue.LEASE_MAX:,} messages |",
        f"| {app.PARTITIONS_MAX} in use, {checks.PARTITIONS_TOTAL} with those from before",
        f"{policy.SECONDS_MAX // (365 * 24 * 3600)} years",
        f"| {worker.PREFETCH_MAX:,}, and no more than it worked off in "
        f"{worker.PREFETCH_S * 1000:.0f} ms lately, or in the time of two leases if that is longer "
        f"(up to {worker.PREFETCH_S_MAX} s)",
        f"| {worker.GROUP} |",
        f"{leasing.PROMOTE_MAX:,}; more with the next",
        f"newest {EVENTS_KEPT:,}",
        f"from {worker.RECONNECT_S[0]} s up to every {worker.RECONNECT_S[1]:.0f} s",
        f"drops up to {sweeper.TRIM_STEP * sweeper.TRIM_STEPS_MAX:,} rows per queue",
        f"in steps of {sweeper.TRIM_STEP:,}",
        f"log for {(DEFAULTS.retention or 0) / 86400:.0f} days",
        f"`HOLDFAST_OVERDUE_CHECK_INTERVAL_MS` | {settings.load({}).overdue_check_interval_ms} |",
        f"`HOLDFAST_REQUEUE_BATCH_SIZE` | {settings.load({}).requeue_batch_size} |",
        f"`HOLDFAST_ACK_TIMEOUT_SECONDS` | {DEFAULTS.ack_timeout:.0f} |",
        f"`HOLDFAST_MAX_ATTEMPTS` | {DEFAULTS.max_attempts} |",
    ],
)
def test_operations_says_what_the_code_does(said: str) -> None:
    assert said in " ".join(OPERATIONS.split()), said


def test_operations_names_every_setting() -> None:
    for field in settings.Settings.__struct_fields__:
        assert f"`{settings.PREFIX}{field.upper()}`" in OPERATIONS
