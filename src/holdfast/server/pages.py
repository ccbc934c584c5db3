"""The dashboard's files, as the build left them in static/, given out at / and /assets/.

They are read once, when the server starts, and found by their whole path: no path that somebody
sends ever names a file. They hold no data, so they need no key; what the page shows it asks for
under /v1, with the key of whoever looks at it.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "static"
INDEX = "/index.html"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
"""What may be given out; a file of any other kind is not."""
PACKED = {".css", ".html", ".js", ".json", ".svg", ".txt"}
FILES_MAX = 1000
HEADERS = {
    # Scripts come from here and nowhere else. Styles may stand in the page: components set them.
    "content-security-policy": "default-src 'self'; script-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; "
    "connect-src 'self'; frame-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
NOT_BUILT = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Holdfast</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{font:16px/1.6 system-ui,sans-serif;max-width:40rem;margin:3rem auto;padding:0 1rem}
@media(prefers-color-scheme:dark){body{background:#16181c;color:#e4e6ea}a{color:#8bf}}</style>
<h1>Holdfast</h1><p>This server runs, but the dashboard was not built into it. In a checkout,
<code>script/setup</code> builds it, with Node.js 20.19 or later; a wheel from
<code>python -m build</code> has it. Then start the server again.</p>
<p>Meanwhile: <a href="/docs">what can be asked of this server</a>.</p></html>"""


Endpoint = Callable[[Request], Awaitable[Response]]


class File(msgspec.Struct, frozen=True):
    body: bytes
    packed: bytes | None
    """The same in gzip, where that is smaller."""
    media_type: str
    etag: str
    is_for_ever: bool
    """Its name has a hash of what is in it: another file has another name."""


class Pages:
    def __init__(self, folder: Path = FOLDER) -> None:
        self._files = _read_all(folder)

    @property
    def is_built(self) -> bool:
        return INDEX in self._files

    async def index(self, request: Request) -> Response:
        file = self._files.get(INDEX)
        if file is None:
            return Response(NOT_BUILT, media_type=TYPES[".html"], headers=_with("no-store"))
        return _answer(request, file)

    def others(self) -> dict[str, Endpoint]:
        """By path: everything but the first page."""
        return {path: _giver(file) for path, file in self._files.items() if path != INDEX}


def _giver(file: File) -> Endpoint:
    async def give(request: Request) -> Response:
        return _answer(request, file)

    return give


def _answer(request: Request, file: File) -> Response:
    age = "public, max-age=31536000, immutable" if file.is_for_ever else "no-cache"
    headers = {**_with(age), "etag": file.etag, "vary": "accept-encoding"}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    body = file.body
    if file.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["content-encoding"] = file.packed, "gzip"
    return Response(body, media_type=file.media_type, headers=headers)


def _with(age: str) -> dict[str, str]:
    return {**HEADERS, "cache-control": age}


def _read_all(folder: Path) -> dict[str, File]:
    found: dict[str, File] = {}
    for path in sorted(folder.rglob("*"))[:FILES_MAX]:
        if path.is_file() and path.suffix in TYPES:
            found[f"/{path.relative_to(folder).as_posix()}"] = _read(path, folder)
    return found


def _read(path: Path, folder: Path) -> File:
    body = path.read_bytes()
    packed = gzip.compress(body, 9, mtime=0) if path.suffix in PACKED else body
    return File(
        body,
        packed if len(packed) < len(body) else None,
        TYPES[path.suffix],
        f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        path.parent == folder / "assets",
    )
