"""The dashboard's files: what is given out, with which headers, and what is not."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import holdfast
from holdfast.server import http as door
from holdfast.server.pages import Pages
from tests.server.rig import serving

pytestmark = pytest.mark.promise("SERVER-1")

SCRIPT = b"console.log('a page')\n" * 100
TRICKS = [
    "/assets/../index.html",
    "/assets/..%2f..%2fpages.py",
    "/assets/%2e%2e/%2e%2e/pages.py",
    "/../pages.py",
    "//etc/passwd",
    "/assets/",
    "/assets",
    "/assets/app-1.js/",
    "/index.html",
    "/notes.md",
    "/.env",
    "/assets/app-1.js%00.css",
]


@pytest.fixture
def built(tmp_path: Path) -> Path:
    folder = tmp_path / "static"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html><title>Holdfast</title>")
    (folder / "assets/app-1.js").write_bytes(SCRIPT)
    (folder / "assets/dot.png").write_bytes(b"\x89PNG")
    (folder / "favicon.svg").write_text("<svg/>")
    (folder / "notes.md").write_text("not for others")
    (folder / ".env").write_text("not for others")
    return folder


@pytest.fixture
def given(request: pytest.FixtureRequest) -> bool:
    return getattr(request, "param", False)


@pytest.fixture
def place(
    built: Path, given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    monkeypatch.setattr(door, "Pages", lambda: Pages(built))
    with (
        holdfast.connect(f"sqlite:///{tmp_path}/jobs.db") as hf,
        serving(hf, auth=given) as doors,
    ):
        yield urlsplit(doors.http).netloc


def get(
    place: str, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """As it is written: no library tidies the path up first."""
    connection = http.client.HTTPConnection(place, timeout=10)
    try:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=sent)
        answer = connection.getresponse()
        said = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, said, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("given", [False, True], indirect=True, ids=["no keys", "keys"])
def test_the_page_needs_no_key(place: str) -> None:
    status, headers, body = get(place, "/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"<title>Holdfast" in body
    assert headers["cache-control"] == "no-cache"
    status, headers, body = get(place, "/assets/app-1.js")
    assert (status, body) == (200, SCRIPT)
    assert headers["content-type"] == "text/javascript; charset=utf-8"
    assert headers["cache-control"] == "public, max-age=31536000, immutable"
    status, headers, _ = get(place, "/favicon.svg")
    assert (status, headers["content-type"]) == (200, "image/svg+xml")
    assert get(place, "/", "HEAD")[0] == 200


def test_a_page_may_do_little(place: str) -> None:
    for path in ("/", "/assets/app-1.js"):
        headers = get(place, path)[1]
        assert headers["x-content-type-options"] == "nosniff"
        rules = dict(
            rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";")
        )
        assert rules["script-src"] == rules["connect-src"] == rules["default-src"] == "'self'"
        assert rules["frame-ancestors"] == rules["object-src"] == rules["base-uri"] == "'none'"
        assert headers["referrer-policy"] == "no-referrer"


def test_what_is_known_is_not_sent_again(place: str) -> None:
    for path in ("/", "/assets/app-1.js"):
        etag = get(place, path)[1]["etag"]
        status, headers, body = get(place, path, if_none_match=etag)
        assert (status, body, headers["etag"]) == (304, b"", etag)
        assert get(place, path, if_none_match='"another"')[0] == 200


def test_what_can_be_packed_is(place: str) -> None:
    import gzip

    status, headers, body = get(place, "/assets/app-1.js", accept_encoding="gzip, br")
    assert (status, headers["content-encoding"]) == (200, "gzip")
    assert gzip.decompress(body) == SCRIPT
    assert len(body) < len(SCRIPT) / 5
    assert "content-encoding" not in get(place, "/assets/dot.png", accept_encoding="gzip")[1]


@pytest.mark.parametrize("path", TRICKS)
def test_nothing_else_is_given_out(place: str, path: str) -> None:
    status, headers, body = get(place, path)
    assert status in (400, 404)
    assert headers["content-type"] == "application/problem+json"
    assert b"not for others" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_pages_are_only_read(place: str, method: str) -> None:
    assert get(place, "/", method)[0] == 405


def test_strangers_are_refused_here_as_well(place: str) -> None:
    assert get(place, "/", host="queue.example")[0] == 403
    assert get(place, "/", origin="https://queue.example")[0] == 403
    assert get(place, "/assets/app-1.js", sec_fetch_site="cross-site")[0] == 403


def test_without_a_dashboard_it_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "Pages", lambda: Pages(tmp_path / "nowhere"))
    with holdfast.connect("memory://") as hf, serving(hf) as doors:
        status, headers, body = get(urlsplit(doors.http).netloc, "/")
    assert (status, headers["cache-control"]) == (200, "no-store")
    assert b"script/setup" in body and b'href="/docs"' in body
    assert "content-security-policy" in headers
