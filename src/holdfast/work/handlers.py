"""Handlers: the registered functions, for which messages, and how they get their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, get_type_hints

import msgspec

from holdfast.errors import InvalidArgument
from holdfast.model import payload
from holdfast.model.message import Lease, Message, check_queue_name
from holdfast.model.policy import positive
from holdfast.work.verdict import NO_HANDLER, Verdict


class Misfit(InvalidArgument):
    """The payload does not fit the type that the handler annotates."""

    def __reduce__(self) -> tuple[type[InvalidArgument], tuple[str, str]]:
        return Misfit, (self.field, self.problem)


class Handler:
    """One registered function. Its signature is read when it is first needed, so that it may name
    types that are defined further down."""

    def __init__(
        self,
        function: Callable[..., Any],
        queue: str,
        type: str | None,
        name: str | None,
        time_limit: float | None,
    ) -> None:
        if not callable(function):
            raise InvalidArgument("handler", f"must be a function, not {function!r}")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidArgument("handler", f"{function!r} is a generator: its body would not run")
        positive("time_limit", time_limit)
        self.function = function
        self.queue = check_queue_name(queue)
        self.type = type
        self.name = name or getattr(function, "__qualname__", repr(function))
        self.time_limit = time_limit
        self.is_async = inspect.iscoroutinefunction(function)
        self._arguments: Callable[[Lease], tuple[Any, ...]] | None = None
        self._hints: dict[str, Any] | None = None

    def portable(self) -> Handler:
        """A copy that carries its annotated types: where a function arrives by value, the names in
        its annotations may be undefined."""
        other = copy(self)
        other._hints = _hints(self.function)
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arguments": None}

    def arguments(self, lease: Lease) -> tuple[Any, ...]:
        """What to call the function with. Raises Misfit for a payload of another type."""
        if self._arguments is None:
            self.prepare()
        assert self._arguments is not None
        return self._arguments(lease)

    def prepare(self) -> None:
        """Read the signature: a `Message`, a `Lease`, `attempt`, and one parameter for the payload.

        Raises InvalidArgument for a signature that cannot be filled.
        """
        hints = self._hints or _hints(self.function)
        makers: list[Callable[[Lease], Any]] = []
        payload_name: str | None = None
        for name, parameter in inspect.signature(self.function).parameters.items():
            maker = _special(name, hints.get(name, Any))
            if maker is None:
                if payload_name is not None and parameter.default is not parameter.empty:
                    break
                if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                    continue
                if payload_name is not None or parameter.kind is parameter.KEYWORD_ONLY:
                    raise InvalidArgument(
                        f"handler {self.name}",
                        f"cannot fill parameter {name!r}: it may take the payload, and `message`, "
                        "`lease` or `attempt`",
                    )
                payload_name = name
                maker = _payload_maker(self.name, hints.get(name, Any))
            makers.append(maker)
        if len(makers) == 1:
            only = makers[0]
            self._arguments = lambda lease: (only(lease),)
        else:
            self._arguments = lambda lease: tuple(make(lease) for make in makers)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError) as error:
        raise InvalidArgument(
            f"handler {getattr(function, '__qualname__', function)}",
            f"its annotations cannot be read: {error}",
        ) from error


def _special(name: str, hint: Any) -> Callable[[Lease], Any] | None:
    if hint is Message or (name == "message" and hint is Any):
        return lambda lease: _own(lease.message)
    if hint is Lease or (name == "lease" and hint is Any):
        return lambda lease: msgspec.structs.replace(lease, message=_own(lease.message))
    if name == "attempt" and hint in (int, Any):
        return lambda lease: lease.message.attempts
    return None


def _own(message: Message) -> Message:
    """A copy that a handler may change: messages share empty headers and histories."""
    history = msgspec.structs.replace(message.history, handled=dict(message.history.handled))
    return msgspec.structs.replace(message, headers=dict(message.headers), history=history)


def _payload_maker(handler: str, hint: Any) -> Callable[[Lease], Any]:
    try:
        decode = payload.decoder(hint)
    except TypeError as error:
        raise InvalidArgument(
            f"handler {handler}", f"cannot decode a payload into {hint!r}: {error}"
        ) from error

    def make(lease: Lease) -> Any:
        try:
            return decode(lease.message.body, lease.message.content_type)
        except Exception as error:  # pydantic's errors have no base in common with msgspec's
            raise Misfit("payload", f"does not fit {_shown(hint)}: {error}") from None

    return make


def _shown(hint: Any) -> str:
    return "JSON" if hint is Any else getattr(hint, "__name__", str(hint))


class Registry:
    """All handlers of one connection, by queue and message type."""

    def __init__(self) -> None:
        self._handlers: list[Handler] = []
        self._found: dict[tuple[str, str | None], tuple[Handler, ...]] = {}

    def add(self, handler: Handler) -> None:
        for other in self._handlers:
            if (other.queue, other.name) == (handler.queue, handler.name):
                raise InvalidArgument(
                    "name",
                    f"queue {handler.queue} has a handler {handler.name!r}; pass another name=",
                )
        self._handlers.append(handler)
        self._found.clear()

    def all(self) -> list[Handler]:
        return list(self._handlers)

    def queues(self) -> list[str]:
        return list(dict.fromkeys(handler.queue for handler in self._handlers))

    def matching(self, message: Message) -> tuple[Handler, ...]:
        """Every handler for its queue whose type is the message's, or that takes any."""
        key = (message.queue, message.type)
        found = self._found.get(key)
        if found is None:
            found = tuple(
                handler
                for handler in self._handlers
                if handler.queue == message.queue and handler.type in (None, message.type)
            )
            self._found[key] = found
        return found

    def due(self, message: Message) -> Sequence[Handler]:
        """Those that have not succeeded on this message yet."""
        handled, matching = message.history.handled, self.matching(message)
        if not handled:
            return matching
        return [handler for handler in matching if handler.name not in handled]

    def nothing_due(self, message: Message) -> Verdict:
        """The verdict where `due` is empty: all have succeeded before and the ack was lost, or no
        handler matches."""
        return Verdict() if self.matching(message) else NO_HANDLER
