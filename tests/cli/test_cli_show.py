"""How things look to people."""

from __future__ import annotations

import pytest
from rich.console import Console

from holdfast import Message
from holdfast.cli import show
from holdfast.cli.show import Column, number
from holdfast.model.payload import BYTES, JSON

NOW = 1_700_000_000_000
ID = "019a8f6e-0000-7000-8000-000000000001"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.25, "250 ms"),
        (1.5, "1.5 s"),
        (12, "12 s"),
        (90, "1 min 30 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (3605, "1 h"),
        (7 * 86400, "7 d"),
    ],
)
def test_length(seconds: float, text: str) -> None:
    assert show.length(seconds) == text


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (None, ""),
        (NOW, "now"),
        (NOW - 999, "now"),
        (NOW - 12_000, "12 s ago"),
        (NOW - 119_999, "119 s ago"),
        (NOW - 120_000, "2 min ago"),
        (NOW - 48 * 3_600_000, "2 d ago"),
        (NOW + 1, "in 1 s"),
        (NOW + 300_000, "in 5 min"),
    ],
)
def test_ago(at: int | None, text: str) -> None:
    assert show.ago(at, NOW) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1200, "1.2 kB"),
        (56_000_000, "56.0 MB"),
        (3 * 10**16, "30000.0 TB"),
    ],
)
def test_size(n: int, text: str) -> None:
    assert show.size(n) == text


def test_what_others_wrote_cannot_steer_the_terminal() -> None:
    assert show.clean("red \x1b[31m\nline\u202e é") == "red \\x1b[31m\\nline\\u202e é"


def message(body: bytes, content_type: str = JSON) -> Message:
    return Message(ID, "q", 0, 0, None, None, body, content_type, {}, NOW, NOW, 0)


def test_payloads_on_one_line() -> None:
    assert show.short_payload(message(b'{ "a":\n 1 }')) == '{"a":1}'
    assert show.short_payload(message(b"two\nlines", "text/plain")) == "two\\nlines"
    assert show.short_payload(message(b"\x00" * 1234, BYTES)) == f"<1.2 kB of {BYTES}>"
    assert show.short_payload(message(b"\xff", "text/plain")) == "<1 byte of text/plain>"
    long = show.short_payload(message(b'"' + b"x" * 500 + b'"'))
    assert (len(long), long[-2:]) == (show.PAYLOAD_SHOWN, "x…")


def test_payloads_in_full() -> None:
    assert show.whole_payload(message(b'{"a":1}')) == '{\n  "a": 1\n}'
    assert show.whole_payload(message(b"two\n\x1blines", "text/plain")) == "two\n\\x1blines"


COLUMNS = [Column("ID"), number("N"), Column("KEY", optional=True), Column("BODY", elastic=True)]
ROWS = [[ID, "5", "customer-1", "x" * 60], [ID, ("1,000", "red"), "", "short"]]


def drawn(width: int) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(show.terminal_table(COLUMNS, ROWS, width), soft_wrap=True)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def test_a_plain_table_cuts_nothing() -> None:
    assert show.plain_table(COLUMNS, ROWS) == (
        f"ID                                        N  KEY         BODY\n"
        f"{ID}      5  customer-1  {'x' * 60}\n"
        f"{ID}  1,000              short"
    )


def test_a_terminal_cuts_only_the_elastic_column() -> None:
    assert drawn(80) == (
        f"ID                                        N  KEY         BODY\n"
        f"{'─' * 80}\n"
        f"{ID}      5  customer-1  {'x' * 22}…\n"
        f"{ID}  1,000              short"
    )


def test_a_narrow_terminal_leaves_out_what_is_optional() -> None:
    assert drawn(60) == (
        f"ID                                        N  BODY\n"
        f"{'─' * 60}\n"
        f"{ID}      5  {'x' * 14}…\n"
        f"{ID}  1,000  short"
    )


def test_a_terminal_that_is_too_narrow_wraps_what_is_plain() -> None:
    assert drawn(40) == show.plain_table(COLUMNS, ROWS)


def test_a_column_without_content_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    show.table(COLUMNS, [[ID, "5", "", "x"]], empty="nothing")
    assert capsys.readouterr().out == f"{'ID':<36}  N  BODY\n{ID}  5  x\n"
    show.table(COLUMNS, [], empty="nothing")
    assert capsys.readouterr().out == "nothing\n"
