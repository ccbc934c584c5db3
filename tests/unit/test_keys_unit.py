"""What a key may, as a table; patterns and the form of a key, on whatever Hypothesis thinks of."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import holdfast
from holdfast import Unauthenticated
from holdfast.model.message import check_queue_name
from holdfast.server import auth
from holdfast.server.auth import RIGHTS, Authority, Principal, Right, Role, matches

SOME = st.text("ab.@-_", max_size=8)
PATTERNS = st.text("ab.@-_*", min_size=1, max_size=8)


def holder(*queues: str, role: Role = "admin") -> Principal:
    return Principal("id", "", RIGHTS[role], queues)


@given(PATTERNS, SOME)
@example("a*a", "a")
@example("*ab*b", "ab")
@example("a*b*a", "aba")
def test_patterns_are_those_of_the_shell_with_stars_only(pattern: str, name: str) -> None:
    assert matches(pattern, name) == fnmatchcase(name, pattern)


def test_many_stars_are_no_trap() -> None:
    assert not matches("*a" * 60 + "b", "a" * 128)


@pytest.mark.parametrize("pattern", ["a[b]", "a?", "A", "a.b"])
def test_nothing_else_is_special(pattern: str) -> None:
    assert matches(pattern, pattern)
    assert not any(matches(pattern, name) for name in ("ab", "a", "axb"))


@pytest.mark.parametrize(
    ("pattern", "covered", "not_covered"),
    [
        ("orders", ["orders", "orders.dlq"], ["orders.eu", "orders@mail", "my.orders", "order"]),
        ("orders*", ["orders", "orders.dlq", "orders.eu", "orders.eu.dlq", "orders@mail"], ["o"]),
        ("orders.*", ["orders.eu", "orders.eu.dlq"], ["orders", "orders.dlq", "orders@mail"]),
        ("orders@*", ["orders@mail", "orders@mail.dlq"], ["orders", "orders.dlq"]),
        ("orders.dlq", ["orders.dlq"], ["orders"]),
        ("*.dlq", ["orders.dlq", "mail.dlq"], ["orders"]),
        ("*", ["orders", "orders.dlq", "orders@mail"], []),
        ("*.eu", ["orders.eu", "orders.eu.dlq"], ["orders.us", "eu"]),
    ],
)
def test_a_pattern_covers(pattern: str, covered: list[str], not_covered: list[str]) -> None:
    for right in ("read", "consume", "admin", "produce"):
        assert [q for q in covered if not holder(pattern).may(right, q)] == []
        assert [q for q in not_covered if holder(pattern).may(right, q)] == []


@pytest.mark.parametrize(
    ("role", "may"),
    [
        ("read", {"read"}),
        ("produce", {"produce"}),
        ("consume", {"consume", "read"}),
        ("admin", {"read", "produce", "consume", "admin"}),
    ],
)
def test_a_role_may(role: Role, may: set[Right]) -> None:
    rights: tuple[Right, ...] = ("read", "produce", "consume", "admin")
    assert {right for right in rights if holder("a", role=role).may(right, "a")} == may
    assert {right for right in rights if holder("a", role=role).may(right, "b")} == set()


def test_who_produces_puts_no_dead_letters() -> None:
    for pattern in ("orders", "orders*", "*"):
        assert holder(pattern, role="produce").may("produce", "orders")
        assert not holder(pattern, role="produce").may("produce", "orders.dlq")
    assert holder("orders.dlq", role="produce").may("produce", "orders.dlq")


def test_the_whole_store_is_for_keys_of_every_queue() -> None:
    assert holder("a", "*", role="read").may("read", None)
    assert not holder("a", "*", role="read").may("admin", None)
    assert not holder("a*", "**a").may("read", None)


@given(PATTERNS, SOME.map(lambda tail: f"a{tail}"))
def test_dead_letters_go_with_their_queue(pattern: str, name: str) -> None:
    try:
        check_queue_name(f"{name}.dlq")
    except holdfast.InvalidArgument:
        return
    if holder(pattern).may("consume", name):
        assert holder(pattern).may("consume", f"{name}.dlq")


CONTEXT = holdfast.connect("memory://").context
MADE, TOKEN = auth.create(CONTEXT, roles=["read"], queues=["*"])


@given(
    st.text(max_size=80)
    | st.from_regex(r"hf_[a-z2-7]{12}_[A-Za-z0-9_-]{43}", fullmatch=True)
    | st.tuples(st.integers(0, 58), st.sampled_from("aZ2-_ é")).map(
        lambda at: TOKEN[: at[0]] + at[1] + TOKEN[at[0] + 1 :]
    )
)
@example(TOKEN)
def test_only_the_very_key_is_known(text: str) -> None:
    authority = Authority(CONTEXT)
    if text == TOKEN:
        assert authority.check(text).id == MADE.id
    else:
        with pytest.raises(Unauthenticated):
            authority.check(text)


def test_keys_have_one_form_and_differ() -> None:
    made = [auth.create(CONTEXT, roles=["read"], queues=["*"])[1] for _ in range(200)]
    assert len(set(made)) == 200
    assert {len(token) for token in made} == {59}
    assert any("_" in token[16:] for token in made)  # which must not confuse anybody
    authority = Authority(CONTEXT)
    assert [authority.check(token).id for token in made] == [token[3:15] for token in made]
