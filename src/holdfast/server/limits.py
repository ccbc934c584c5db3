"""What one client may ask of a server at most. Each can be set on `holdfast serve`."""

from __future__ import annotations

import msgspec

from holdfast.policy import positive, seconds, whole


class Limits(msgspec.Struct, frozen=True):
    body_bytes: int = 32 * 1024 * 1024
    """Of one request. Default 32 MiB."""
    wait_seconds: float = 60.0
    """A long poll is answered after this time, whatever it asked for. Default 60."""
    polls: int = 10_000
    """Long polls that wait at one time. Default 10,000."""
    streams: int = 1000
    """Event streams, and streams of leases, at one time. Default 1,000."""
    read_seconds: float = 30.0
    """A request whose body takes longer is given up. Default 30."""

    def __post_init__(self) -> None:
        for name in ("body_bytes", "polls", "streams"):
            whole(name, getattr(self, name), low=1)
        seconds("wait_seconds", self.wait_seconds)
        positive("read_seconds", self.read_seconds)
