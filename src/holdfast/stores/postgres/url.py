"""A store's URL: whatever libpq takes, and a few options of ours."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import conninfo, pq

from holdfast.errors import InvalidArgument
from holdfast.stores import url_options
from holdfast.stores.postgres.connections import Where

OWN_OPTIONS = {"schema", "timeout", "pool_size", "pooler", "synchronous_commit"}
SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,40}")
HOST = re.compile(r"(\[[^]]*\]|[^:]*)(:[0-9]*)?")


def where(url: str) -> Where:
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    options = url_options(url, known | OWN_OPTIONS)
    schema = options.get("schema", "holdfast")
    if not SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        raise InvalidArgument("url option schema", f"{schema!r}: a-z, 0-9 and _, at most 41 long")
    pooler = options.get("pooler", "none")
    if pooler not in ("none", "transaction"):
        raise InvalidArgument("url option pooler", "must be none or transaction")
    commit = options.get("synchronous_commit", "on")
    if commit not in ("on", "off", "local", "remote_write", "remote_apply"):
        raise InvalidArgument("url option synchronous_commit", f"PostgreSQL has no {commit!r}")
    parts = urlsplit(url)
    if parts.fragment or not _has_ports(parts.netloc):  # most often a password: so it is not shown
        raise InvalidArgument("url", "not a PostgreSQL URL; write :/?#[]@% in a part of it as %xx")
    rest = [
        (k, v) for k, v in parse_qsl(parts.query, keep_blank_values=True) if k not in OWN_OPTIONS
    ]
    plain = urlunsplit(
        ("postgresql", parts.netloc, parts.path, urlencode(rest, quote_via=quote), "")
    )
    timeout = _number(options, "timeout", 10.0)
    try:
        info = conninfo.conninfo_to_dict(plain)
    except psycopg.Error as error:
        raise InvalidArgument(
            "url", f"not a PostgreSQL URL: {str(error).partition(':')[0]}"
        ) from None
    patience: dict[str, Any] = {
        "connect_timeout": max(2, int(timeout)),
        "application_name": "holdfast",
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": int(timeout * 1000),
    }
    return Where(
        conninfo=conninfo.make_conninfo("", **{**patience, **info, "client_encoding": "utf8"}),
        shown=_shown(info),
        schema=schema,
        timeout=timeout,
        pool_size=_whole(options, "pool_size", 10),
        pooler=pooler == "transaction",
        synchronous_commit=commit,
    )


def _has_ports(netloc: str) -> bool:
    """Whether what follows a colon is a number, in each host of the list."""
    return all(HOST.fullmatch(host) for host in netloc.rpartition("@")[2].split(","))


def _shown(info: dict[str, Any]) -> str:
    host = f"{info.get('host', 'localhost')}:{info.get('port', 5432)}"
    return f"postgresql://{host}/{info.get('dbname', '')}"


def _number(options: dict[str, str], name: str, default: float) -> float:
    try:
        value = float(options.get(name, default))
    except ValueError:
        value = 0.0
    if not 1 <= value <= 3600:
        raise InvalidArgument(f"url option {name}", "must be a number from 1 to 3600")
    return value


def _whole(options: dict[str, str], name: str, default: int) -> int:
    value = _number(options, name, default)
    if not value.is_integer():
        raise InvalidArgument(f"url option {name}", "must be a whole number")
    return int(value)
