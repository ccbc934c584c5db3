"""A store's URL: redis://, rediss:// (TLS), with +sentinel or +cluster after it.

redis://user:password@host:6379/0
redis+sentinel://host:26379,other:26379/name-of-the-master/0
redis+cluster://host:6379,other:6379
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from holdfast.errors import InvalidArgument
from holdfast.stores import url_options

OPTIONS = {"prefix", "timeout", "ca", "cert", "key", "verify", "sentinel_password"}
PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,64}")
PORTS = {"": 6379, "cluster": 6379, "sentinel": 26379}


class Where(msgspec.Struct, frozen=True):
    """How to reach a server, and how long any call may take."""

    kind: str
    """"" for one server, else sentinel or cluster."""
    hosts: list[tuple[str, int]]
    shown: str
    """For messages: without a password."""
    service: str
    """The name that Sentinel knows the master by."""
    db: int
    prefix: str
    timeout: float
    options: dict[str, Any]
    """For the driver: credentials, TLS."""
    sentinel_password: str | None = None


def where(url: str) -> Where:
    options = url_options(url, OPTIONS)
    parts = urlsplit(url)
    scheme, _, kind = parts.scheme.partition("+")
    if kind not in PORTS:
        raise InvalidArgument("url", f"no {parts.scheme}://; +sentinel or +cluster")
    if parts.fragment or "?" in parts.netloc:  # most often a password: so it is not shown
        raise InvalidArgument("url", "not a Redis URL; write :/?#[]@% in a part of it as %xx")
    user, _, places = parts.netloc.rpartition("@")
    hosts = [_host(place, PORTS[kind]) for place in places.split(",")]
    if not kind and len(hosts) > 1:
        raise InvalidArgument("url", "several hosts: say redis+cluster:// or redis+sentinel://")
    prefix = options.get("prefix", "holdfast")
    if not PREFIX.fullmatch(prefix):
        raise InvalidArgument("url option prefix", f"{prefix!r}: letters, digits, '_', '.', '-'")
    service, db = _path(kind, parts.path)
    return Where(
        kind=kind,
        hosts=hosts,
        shown=f"{parts.scheme}://{','.join(f'{host}:{port}' for host, port in hosts)}",
        service=service,
        db=db,
        prefix=prefix,
        timeout=_seconds(options),
        options=_driver(scheme, user, options),
        sentinel_password=options.get("sentinel_password"),
    )


def _driver(scheme: str, user: str, options: dict[str, str]) -> dict[str, Any]:
    """Credentials and TLS, as the driver takes them."""
    name, _, password = user.partition(":")
    login = {"username": unquote(name) or None, "password": unquote(password) or None}
    if scheme != "rediss":
        if tls := {"ca", "cert", "key", "verify"} & options.keys():
            raise InvalidArgument(f"url option {min(tls)}", "is for rediss://")
        return login
    verify = options.get("verify", "full")
    if verify not in ("full", "none"):
        raise InvalidArgument("url option verify", "must be full or none")
    for file in ("ca", "cert", "key"):
        if file in options and not Path(options[file]).is_file():
            raise InvalidArgument(f"url option {file}", f"there is no file {options[file]}")
    return {
        **login,
        "ssl": True,
        "ssl_cert_reqs": "required" if verify == "full" else "none",
        "ssl_check_hostname": verify == "full",
        "ssl_ca_certs": options.get("ca"),
        "ssl_certfile": options.get("cert"),
        "ssl_keyfile": options.get("key"),
    }


def _host(place: str, port: int) -> tuple[str, int]:
    match = re.fullmatch(r"(?P<host>\[[^]]+\]|[^:\[\]]*)(:(?P<port>[0-9]+))?", place)
    if match is None or not 0 < int(match["port"] or port) < 65536:
        raise InvalidArgument("url", "not a Redis URL; write :/?#[]@% in a part of it as %xx")
    return match["host"].strip("[]") or "localhost", int(match["port"] or port)


def _path(kind: str, path: str) -> tuple[str, int]:
    """The master's name (Sentinel) and the number of the database."""
    service, names = "", [unquote(part) for part in path.strip("/").split("/") if part]
    if kind == "sentinel":
        if not names:
            raise InvalidArgument("url", "name the master: redis+sentinel://host:26379/mymaster")
        service = names.pop(0)
    if len(names) > 1 or not all(name.isdecimal() for name in names):
        raise InvalidArgument("url", f"{path!r} is not the number of a database")
    db = int(names[0]) if names else 0
    if kind == "cluster" and db:
        raise InvalidArgument("url", "a cluster has one database, 0")
    return service, db


def _seconds(options: dict[str, str]) -> float:
    try:
        value = float(options.get("timeout", 10.0))
    except ValueError:
        value = 0.0
    if not 1 <= value <= 3600:
        raise InvalidArgument("url option timeout", "must be a number from 1 to 3600")
    return value
