"""What one client may ask of a server at most. Each can be set on `holdfast serve`."""

from __future__ import annotations

import msgspec

from holdfast.model.policy import positive, seconds, whole

ANSWER_BYTES = 16 * 1024 * 1024


class Limits(msgspec.Struct, frozen=True):
    body_bytes: int = 32 * 1024 * 1024
    """Of one request. Default 32 MiB."""
    answer_bytes: int = ANSWER_BYTES
    """Of the messages in one page, or leased by one call; one message is always given. Default
    16 MiB."""
    wait_seconds: float = 60.0
    """A long poll is answered after this time, whatever it asked for. Default 60."""
    polls: int = 10_000
    """Long polls that wait at one time. Default 10,000."""
    streams: int = 1000
    """Event streams, and streams of leases, at one time. Default 1,000."""
    read_seconds: float = 30.0
    """A request whose body takes longer is given up, and so is a gRPC call whose message does.
    Default 30."""
    header_bytes: int = 64 * 1024
    """Of the request line and the headers of one request; gRPC metadata has at most a quarter of
    it. Default 64 KiB."""
    headers: int = 100
    """Of one HTTP request. Default 100."""
    head_seconds: float = 10.0
    """A connection that has not sent a whole request head after this time is closed; so is one
    that has not finished its TLS handshake. Default 10."""
    unread_bytes: int = 256 * 1024 * 1024
    """Of answers that clients have not read yet, in all; then calls that may have large answers
    wait, and get 503 (UNAVAILABLE) after five seconds. Default 256 MiB."""
    write_seconds: float = 30.0
    """A client that has stopped reading its answer is cut off after this time; for a large answer
    it is longer by a second for each 16 KiB. Default 30."""
    connections: int = 12_000
    """HTTP connections at one time. Default 12,000, or what the system's limit of open files
    allows."""
    client_connections: int = 2000
    """HTTP connections of one client address at one time; raise it behind a proxy. Default
    2,000."""
    rpc_connections: int = 2000
    """gRPC connections at one time. Default 2,000."""
    rpc_calls: int = 1000
    """Calls at one time on one gRPC connection. Default 1,000."""
    rpc_client_calls: int = 4000
    """gRPC calls of one client address at one time; raise it behind a proxy. Default 4,000."""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            whole(name, getattr(self, name), low=1)
        seconds("wait_seconds", self.wait_seconds)
        for name in ("read_seconds", "head_seconds", "write_seconds"):
            positive(name, getattr(self, name))


_COUNTS = (
    "body_bytes",
    "answer_bytes",
    "unread_bytes",
    "polls",
    "streams",
    "header_bytes",
    "headers",
    "connections",
    "client_connections",
    "rpc_connections",
    "rpc_calls",
    "rpc_client_calls",
)
