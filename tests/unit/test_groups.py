"""What is taken out of an error's text, and what stays."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.queue.failures import BUCKETS_MAX, _bucket_ms, fingerprint, normalise

ODD = st.text("""ab0x5 f'"`/\\.:-<>n@,~_+[(é٣\n""", max_size=40)
WORDS = st.lists(st.text("ghijklmn", min_size=1, max_size=8), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ""),
        ("no such article", "no such article"),
        ("order 4711 is gone", "order <n> is gone"),
        ("took 1.5 s, not 1,200.75", "took <n> s, not <n>"),
        ("at 12:30:45 on 2026-01-31", "at <n> on <n>-<n>-<n>"),
        ("-1 and 50%", "-<n> and <n>%"),
        ("worker3 of 4", "worker<n> of <n>"),
        ("id 01a1e17f-3629-751c-a3ac-09e5bf8325cc", "id <uuid>"),
        ("{01A1E17F-3629-751C-A3AC-09E5BF8325CC}", "{<uuid>}"),
        ("<Order object at 0x7f3a9c0d>", "<Order object at <hex>>"),
        ("commit 9b1c2d3e4f not found", "commit <n> not found"),
        ("commit 9012345678 not found", "commit <n> not found"),
        ("defaced cafebabe", "defaced cafebabe"),
        ("'sku'", "<text>"),
        ('no column "a b" in `t`', "no column <text> in <text>"),
        ("can't find the users' 'x'", "can't find the users' <text>"),
        ("[Errno 2] No such file: '/tmp/x'", "[Errno <n>] No such file: <text>"),
        ("cannot read /var/lib/a-1/b.db: denied", "cannot read <path>: denied"),
        ("in ~/x.py, ../y and ./z", "in <path>, <path> and <path>"),
        (r"C:\temp\a.txt is locked", "<path> is locked"),
        ("read/write and application/json", "read/write and application/json"),
        ("1/2 of 1/x", "<n>/<n> of <n>/x"),
        ("10.0.0.7:5432 refused", "<address> refused"),
        ("to anna.b@example.com: bounced", "to <address>: bounced"),
        ("GET https://api.example.com/v1/x?id=7 -> 503", "GET <url> -> <n>"),
        ("  two\n\tlines  ", "two lines"),
    ],
)
def test_taken_out(text: str, said: str) -> None:
    assert normalise(text) == said
    assert normalise(said) == said


@given(ODD | st.text())
@settings(max_examples=1000)
@example("5'a'")
@example("5aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa")
@example("''12345678-1234-1234-1234-123456789abc'@'-<")
def test_twice_makes_no_difference(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


VALUES = st.one_of(
    st.just(("number", st.integers(0) | st.floats(0, 1e15, allow_nan=False).map("{:.3f}".format))),
    st.just(("uuid", st.uuids())),
    st.just(("hex", st.integers(2**32).map(hex))),
    st.just(("quoted", WORDS.map(lambda words: repr(" ".join(words))))),
    st.just(("path", WORDS.map(lambda words: "/" + "/".join(words)))),
    st.just(("address", st.ip_addresses(v=4))),
)


@given(st.data(), st.lists(st.tuples(WORDS, VALUES), min_size=1, max_size=4))
def test_values_do_not_change_the_fingerprint(data: st.DataObject, parts: list) -> None:
    def said() -> str:
        return " ".join(f"{' '.join(words)} {data.draw(value)}" for words, (_, value) in parts)

    assert fingerprint("r", "c", "h", said()) == fingerprint("r", "c", "h", said())


@given(WORDS, WORDS)
def test_words_do(one: list[str], other: list[str]) -> None:
    same = fingerprint("r", "c", None, " ".join(one)) == fingerprint(
        "r", "c", None, " ".join(other)
    )
    assert same == (one == other)


def test_a_fingerprint_is_of_all_four_and_stays_as_it_is() -> None:
    assert fingerprint("failed", "KeyError", "ship", "'sku'") == "bbd5117da1e98017"
    texts = ["", "a", "b", None]
    made = [
        fingerprint(reason, code, handler, error)
        for reason in texts
        for code in texts
        for handler in texts
        for error in ("", "a", "b")
    ]
    assert len(set(made)) == len(made)


def test_a_long_text_takes_no_time() -> None:
    for part in (
        "a",
        "5",
        "a5",
        "a.",
        "'",
        '"',
        "/",
        "a@",
        "-",
        "0x",
        "aaaaaaaa-",
        ":",
        "<n>",
        "é",
    ):
        normalise(part * 2000)


@given(st.lists(st.integers(0, 2**43), min_size=1))
def test_buckets_are_never_too_many(times: list[int]) -> None:
    size = _bucket_ms(times)
    first, last = min(times), max(times)
    assert last // size - first // size < BUCKETS_MAX


def test_buckets_for_people() -> None:
    assert [_bucket_ms([10**12, 10**12 + span]) for span in (0, 50_000, 3_600_000, 86_400_000)] == [
        *(1000, 1000, 300_000, 3_600_000),
    ]


def test_the_example_is_true() -> None:
    assert normalise("order 4711: no 'A-1' in /srv/stock/7.db") == "order <n>: no <text> in <path>"
