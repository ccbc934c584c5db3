"""The HTTP door: every operation of the table under /v1, events, metrics, health, documents, and
the dashboard at /."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.errors import HoldfastError, InvalidArgument, PermissionDenied
from holdfast.server.auth import ANYBODY, Authority, Principal
from holdfast.server.bodies import Bodies
from holdfast.server.events import Events
from holdfast.server.health import Health
from holdfast.server.limits import Limits
from holdfast.server.openapi import docs_page, openapi
from holdfast.server.pages import HEADERS, Pages
from holdfast.server.service import Service
from holdfast.telemetry import tracing
from holdfast.wire.operations import OPERATIONS, Operation
from holdfast.wire.problems import (
    MEDIA_TYPE,
    MediaTypeUnknown,
    Problem,
    ServerBusy,
    invalid,
    problem_of,
    unexpected,
)
from holdfast.wire.proto import fields_of

JSON = b"application/json"
PREFIX = "/v1"
LARGE = {"Browse", "GetMessage", "LeaseBatch", "ReadLog", "Replay"}
"""Operations whose answers have payloads."""
ROOM_S = 5.0
PIECE = 256 * 1024
"""Of an answer, written at one time."""
LOOPBACK = {"localhost", "127.0.0.1", "::1"}

logger = logging.getLogger("holdfast.server")
_encode = msgspec.json.Encoder().encode


class Door:
    """What the endpoints share: who is asking, and what may be asked."""

    def __init__(
        self,
        service: Service,
        events: Events,
        health: Health,
        authority: Authority | None,
        metrics: Callable[[str], tuple[bytes, str]],
    ) -> None:
        self.service = service
        self.bodies = Bodies(service.limits)
        self.unread = Unread(service.limits)
        self._events = events
        self._health = health
        self._authority = authority
        self._metrics = metrics
        self._pages = Pages()
        self._openapi = msgspec.json.encode(openapi(service.limits))

    def app(self) -> ASGIApp:
        by_path: dict[str, dict[str, Endpoint]] = {}
        for operation in OPERATIONS:
            endpoint = Endpoint(operation, self)
            by_path.setdefault(operation.path, {})[operation.method] = endpoint
        routes: list[BaseRoute] = [
            Route(PREFIX + path, Methods(endpoints), methods=list(endpoints))
            for path, endpoints in by_path.items()
        ]
        routes += [
            Route("/events", self._sse, methods=["GET"]),
            Route("/metrics", self._scrape, methods=["GET"]),
            Route("/health/live", self._live, methods=["GET"]),
            Route("/health/ready", self._ready, methods=["GET"]),
            Route("/openapi.json", self._describe, methods=["GET"]),
            Route("/docs", self._docs, methods=["GET"]),
            Route("/", self._pages.index, methods=["GET"]),
        ]
        for path, give in self._pages.others().items():
            routes.append(Route(path, give, methods=["GET"]))
        handlers: Any = {HTTPException: _refused, HoldfastError: _failed, Exception: _broken}
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.router.redirect_slashes = False  # a path that is not there is said to be not there
        return _Guard(app, self, _Paths(by_path))

    async def who(self, scope: Scope) -> Principal:
        if self._authority is None:
            return ANYBODY
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        token = the_token([value.decode("latin-1") for value in given])
        return await self.service.run(self._authority.check, token)

    def is_open(self) -> bool:
        return self._authority is None

    async def _sse(self, request: Request) -> Response:
        who = await self.who(request.scope)
        who.demand_anywhere("read")
        if request.method == "HEAD":  # or it would go on for ever, with nothing to see
            return Response(media_type="text/event-stream")
        last = request.headers.get("last-event-id") or request.query_params.get("after")
        return self._events.response(request, who, last)

    async def _scrape(self, request: Request) -> Response:
        (await self.who(request.scope)).demand("read", None)
        accept = request.headers.get("accept", "")
        body, media_type = await self.service.run(self._metrics, accept)
        return Response(body, media_type=media_type, headers=HEADERS)

    async def _live(self, request: Request) -> Response:
        return Response(b'{"live":true}', media_type="application/json", headers=HEADERS)

    async def _ready(self, request: Request) -> Response:
        state = await self._health.look()
        status = 200 if state.ready else 503
        told = msgspec.structs.asdict(state)
        if state.ready and await self._may_count(request.scope):
            told["counts"] = await self._health.counts()
        return Response(_encode(told), status, HEADERS, media_type="application/json")

    async def _may_count(self, scope: Scope) -> bool:
        """Probes need no key, but numbers are for those who may read the whole store."""
        try:
            return (await self.who(scope)).may("read", None)
        except HoldfastError:
            return False

    async def _describe(self, request: Request) -> Response:
        return Response(self._openapi, media_type="application/json", headers=HEADERS)

    async def _docs(self, request: Request) -> Response:
        return Response(docs_page(), media_type="text/html; charset=utf-8", headers=HEADERS)


class Unread:
    """Bytes of answers on their way to clients, so that slow readers cannot fill the memory."""

    def __init__(self, limits: Limits) -> None:
        self._most = limits.unread_bytes
        self._bytes = 0
        self._less = asyncio.Event()

    async def room(self) -> None:
        """Wait until another large answer may be made; ServerBusy if that takes too long."""
        try:
            async with asyncio.timeout(ROOM_S):
                while self._bytes >= self._most:
                    self._less.clear()
                    await self._less.wait()
        except TimeoutError:
            raise ServerBusy("clients have not read their answers yet; try again later") from None

    @contextmanager
    def sending(self, body: bytes) -> Generator[None, None, None]:
        self.sent(len(body))
        try:
            yield
        finally:
            self.read(len(body))

    def sent(self, size: int) -> None:
        self._bytes += size

    def read(self, size: int) -> None:
        self._bytes -= size
        self._less.set()


class Methods:
    """What is done at one path, by method; the router has refused the others."""

    def __init__(self, endpoints: dict[str, Endpoint]) -> None:
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        await self._endpoints[method](scope, receive, send)


class Endpoint:
    """One operation as an ASGI application: read, ask the service, write."""

    def __init__(self, operation: Operation, door: Door) -> None:
        self._operation = operation
        self._door = door
        body = body_type(operation)
        self._names: tuple[str, ...] = body.__struct_fields__
        self._lists = {field.name for field in fields_of(operation.ask) if field.kind == "list"}
        self._texts = {field.name for field in fields_of(operation.ask) if field.of is str}
        self._has_body = operation.method not in ("GET", "DELETE")
        self._decode = msgspec.json.Decoder(body).decode

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not tracing.is_loaded():
            return await self._respond(scope, receive, send)
        with tracing.serving(self._operation.name, _headers(scope)):
            return await self._respond(scope, receive, send)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            status, answer = await self._answer(scope, receive)
        except HoldfastError as error:
            return await _send_problem(send, problem_of(error))
        except Exception:
            logger.exception("%s failed", self._operation.name)
            return await _send_problem(send, unexpected())
        if answer is None:
            return None  # nobody is there any more
        body = _encode(answer)
        del answer
        with self._door.unread.sending(body):
            return await _send(send, status, body, JSON)

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, Any]:
        who = await self._door.who(scope)
        ask = await self._ask(scope, receive)
        if self._operation.name in LARGE:
            await self._door.unread.room()
        call = self._door.service.call(self._operation, ask, who)
        if self._operation.name == "LeaseBatch" and ask.wait > 0:
            answer, is_gone = await _unless_gone(call, receive)
            if is_gone and answer is not None:
                answer = await self._door.service.leases.give_back(answer)
        else:
            answer = await call
        return self._operation.status, answer

    async def _ask(self, scope: Scope, receive: Receive) -> Any:
        given = dict(scope["path_params"])
        if not self._has_body:
            return self._from_query(scope, given)
        if scope["query_string"]:
            name = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
            raise InvalidArgument(name[0][0] if name else "query", "no such query parameter")
        raw = await self._body_of(scope, receive)
        try:
            body = self._decode(raw or b"{}")
        except msgspec.ValidationError as error:
            raise invalid(error) from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidArgument("body", f"not JSON: {error}") from None
        except UnicodeDecodeError as error:
            raise InvalidArgument("body", f"not UTF-8: {error}") from None
        given.update(zip(self._names, msgspec.structs.astuple(body), strict=True))
        return self._operation.ask(**given)

    def _from_query(self, scope: Scope, given: dict[str, Any]) -> Any:
        try:
            query = scope["query_string"].decode("ascii")
            pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=100)
        except ValueError as error:
            raise InvalidArgument("query", f"not a query: {error}") from None
        for name, value in pairs:
            if name not in self._names:
                raise InvalidArgument(name, "no such query parameter")
            if name in self._lists:
                given.setdefault(name, []).append(value)
            elif name in given:
                raise InvalidArgument(name, "is given twice")
            elif name not in self._texts and value.lower() == "null":
                raise InvalidArgument(name, "leave it out instead")
            else:
                given[name] = value
        try:
            return msgspec.convert(given, self._operation.ask, strict=False)
        except msgspec.ValidationError as error:
            raise invalid(error) from None

    async def _body_of(self, scope: Scope, receive: Receive) -> bytes:
        raw = await self._door.bodies.read(header(scope, b"content-length"), receive)
        media = (header(scope, b"content-type") or "").partition(";")[0].strip().lower()
        if raw and media != "application/json":
            raise MediaTypeUnknown(f"send application/json, not {media or 'nothing'}")
        return raw


def body_type(operation: Operation) -> type[Any]:
    """The ask without what the path says."""
    fields = [
        (field.name, field.type, msgspec.field(default=field.default))
        if not field.required and field.default is not msgspec.NODEFAULT
        else (field.name, field.type, msgspec.field(default_factory=field.default_factory))
        if not field.required
        else (field.name, field.type)
        for field in msgspec.structs.fields(operation.ask)
        if field.name not in operation.in_path
    ]
    return msgspec.defstruct(
        f"{operation.name}Body", fields, kw_only=True, forbid_unknown_fields=True, frozen=True
    )


async def _unless_gone(call: Awaitable[Any], receive: Receive) -> tuple[Any, bool]:
    """The answer, and whether the client is not there any more. None when it hung up first: the
    call is cancelled then, and gives back what it still gets."""
    doing = asyncio.ensure_future(call)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({doing, gone}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            await asyncio.wait({gone}, timeout=0)  # it may have hung up just now
            return doing.result(), gone.done()
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)
        return None, True
    finally:
        gone.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Guard:
    """Before anything else. Without keys, only this machine's own pages and programs may ask.

    A page of another site that a browser shows can send requests to loopback; it cannot change
    where it says that they come from.
    """

    def __init__(self, app: ASGIApp, door: Door, paths: _Paths) -> None:
        self._app = app
        self._door = door
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                _refuse_slashes(scope)
                if self._door.is_open():
                    _refuse_strangers(scope)
            except HoldfastError as error:
                return await _send_problem(send, problem_of(error))
            if endpoint := self._paths.find(scope):
                return await endpoint(scope, receive, send)
        return await self._app(scope, receive, send)


class _Paths:
    """The straight way to an operation, past the framework's layers, which cost as much as all the
    rest of a small call. What is not found here goes the long way, and is refused there."""

    def __init__(self, by_path: dict[str, dict[str, Endpoint]]) -> None:
        self._by_length: dict[int, list[tuple[list[str], dict[str, Endpoint]]]] = {}
        for path, endpoints in by_path.items():
            parts = f"{PREFIX}{path}".split("/")
            self._by_length.setdefault(len(parts), []).append((parts, endpoints))

    def find(self, scope: Scope) -> Endpoint | None:
        given = scope["path"].split("/")
        for parts, endpoints in self._by_length.get(len(given), ()):
            params = _params(parts, given)
            if params is not None and scope["method"] in endpoints:
                scope["path_params"] = params
                return endpoints[scope["method"]]
        return None


def _params(parts: list[str], given: list[str]) -> dict[str, str] | None:
    """What stands in the braces of a path; None if it is another path."""
    params: dict[str, str] = {}
    for part, text in zip(parts, given, strict=True):
        if part[:1] == "{" and text:
            params[part[1:-1]] = text
        elif part != text:
            return None
    return params


def _refuse_slashes(scope: Scope) -> None:
    """An encoded slash would become a real one, and name something else."""
    if b"%2f" in scope["raw_path"].lower():
        raise InvalidArgument("path", "no name has a slash")


def _refuse_strangers(scope: Scope) -> None:
    host = header(scope, b"host")
    if host and _name(f"//{host}") not in LOOPBACK:
        raise PermissionDenied(f"without keys only loopback is served, not {host!r}")
    origin = header(scope, b"origin")
    if origin is not None and (
        not host or _origin(origin) != _origin(f"{scope['scheme']}://{host}")
    ):
        raise PermissionDenied(f"without keys no page of {origin!r} is served")
    if header(scope, b"sec-fetch-site") == "cross-site":
        raise PermissionDenied("without keys no page of another site is served")


@lru_cache(256)
def _origin(address: str) -> tuple[str, str, int] | None:
    """Scheme, host and port; None, which equals no other, is never returned for an address."""
    try:
        parts = urlsplit(address)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        return None
    return parts.scheme, parts.hostname or "", port


@lru_cache(256)
def _name(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def header(scope: Scope, wanted: bytes) -> str | None:
    for name, value in scope["headers"]:
        if name == wanted:
            return value.decode("latin-1")
    return None


def the_token(given: Sequence[str]) -> str | None:
    """The key in the authorization entries of a call, of which there may be one."""
    if not given:
        return None
    if len(given) > 1:  # which one counts would be a matter of taste
        raise InvalidArgument("authorization", "must be given only once")
    scheme, _, token = given[0].partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


async def _send(send: Send, status: int, body: bytes, media_type: bytes) -> None:
    headers = [
        (b"content-type", media_type),
        (b"content-length", str(len(body)).encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"no-store"),
    ]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 503:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    # Piece by piece, so that it is seen whether the client still reads: see connections.py.
    for n in range(0, len(body) - PIECE, PIECE):
        piece = body[n : n + PIECE]
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    last = (len(body) - 1) // PIECE * PIECE if body else 0
    await send({"type": "http.response.body", "body": body[last:]})


async def _send_problem(send: Send, problem: Problem) -> None:
    await _send(send, problem.status, _encode(problem), MEDIA_TYPE.encode())


def problem_response(problem: Problem, headers: dict[str, str] | None = None) -> Response:
    extra = HEADERS | (headers or {})
    if problem.status == 401:
        extra["www-authenticate"] = "Bearer"
    return Response(_encode(problem), problem.status, headers=extra, media_type=MEDIA_TYPE)


async def _failed(request: Request, error: HoldfastError) -> Response:
    return problem_response(problem_of(error))


async def _broken(request: Request, error: Exception) -> Response:
    logger.exception("%s failed", request.scope["path"], exc_info=error)
    return problem_response(unexpected())


async def _refused(request: Request, error: HTTPException) -> Response:
    """What the router refuses: no such path, no such method."""
    detail = {
        404: f"there is nothing at {request.scope['path'][:200]}",
        405: f"{request.method} is not for {request.scope['path'][:200]}",
    }
    title = {404: "PathNotFound", 405: "MethodNotAllowed"}.get(error.status_code, "Refused")
    problem = Problem(
        type=f"urn:holdfast:problem:{title.lower()}",
        title=title,
        status=error.status_code,
        detail=detail.get(error.status_code, error.detail),
        code="NOT_FOUND" if error.status_code == 404 else "INVALID_ARGUMENT",
    )
    return problem_response(problem, dict(error.headers or {}))
