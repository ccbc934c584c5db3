"""A store's URL: whatever MongoDB takes, and a few options of ours."""

from __future__ import annotations

import re
import warnings
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec
from pymongo import uri_parser
from pymongo.errors import PyMongoError

from holdfast.errors import InvalidArgument, did_you_mean

OWN_OPTIONS = {"prefix", "timeout"}
PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,64}")
NAMES = {
    "appname", "authmechanism", "authmechanismproperties", "authsource", "compressors",
    "connecttimeoutms", "directconnection", "heartbeatfrequencyms", "journal", "loadbalanced",
    "localthresholdms", "maxconnecting", "maxidletimems", "maxpoolsize", "minpoolsize",
    "readconcernlevel", "readpreference", "readpreferencetags", "replicaset", "retryreads",
    "retrywrites", "servermonitoringmode", "serverselectiontimeoutms", "sockettimeoutms",
    "srvmaxhosts", "srvservicename", "tls", "tlsallowinvalidcertificates",
    "tlsallowinvalidhostnames", "tlscafile", "tlscertificatekeyfile",
    "tlscertificatekeyfilepassword", "tlscrlfile", "tlsdisableocspendpointcheck", "tlsinsecure",
    "w", "waitqueuetimeoutms", "wtimeoutms", "zlibcompressionlevel",
}  # fmt: skip
"""The options that a MongoDB URL may have, in small letters."""
DATABASE = "holdfast"


class Where(msgspec.Struct, frozen=True):
    """How to reach a server, and how long any call may take."""

    uri: str
    """For the driver: without our own options."""
    shown: str
    """For messages: without a password."""
    database: str
    prefix: str
    timeout: float
    w: int | str
    journal: bool
    wait_ms: int | None
    """How long a write may wait for the other servers."""


def where(url: str) -> Where:
    parts = urlsplit(url)
    lost = "@" not in parts.netloc and "@" in parts.path + parts.query
    if parts.fragment or lost:  # most often half a password: so it is not shown
        raise InvalidArgument("url", "not a MongoDB URL; write :/?#[]@% in a part of it as %xx")
    options = parse_qsl(parts.query, keep_blank_values=True)
    for name, _ in options:
        if name not in OWN_OPTIONS and name.lower() not in NAMES:
            raise InvalidArgument(f"url option {name}", did_you_mean(name, NAMES | OWN_OPTIONS))
    own = {name: value for name, value in options if name in OWN_OPTIONS}
    prefix = own.get("prefix", "holdfast")
    if not PREFIX.fullmatch(prefix) or prefix.startswith("system."):
        raise InvalidArgument("url option prefix", f"{prefix!r}: letters, digits, '_', '.', '-'")
    rest = [(name, value) for name, value in options if name not in OWN_OPTIONS]
    uri = urlunsplit(
        (parts.scheme, parts.netloc, parts.path or "/", urlencode(rest, quote_via=quote), "")
    )
    given = _parsed(uri, parts.scheme)
    driver = {name.lower(): value for name, value in given["options"].items()}
    if driver.get("w") == 0:
        raise InvalidArgument("url option w", "0 would let go of messages: 1 or more, or majority")
    if given["collection"]:
        raise InvalidArgument("url", "names a collection; a prefix for ours is ?prefix=")
    database = given["database"] or DATABASE
    hosts = parts.netloc.rpartition("@")[2]
    return Where(
        uri=uri,
        shown=f"{parts.scheme}://{hosts}/{database}",
        database=database,
        prefix=prefix,
        timeout=_seconds(own),
        w=driver.get("w", "majority"),
        journal=driver.get("journal", True),
        wait_ms=driver.get("wtimeoutms", driver.get("wtimeout")),
    )


def _parsed(uri: str, scheme: str) -> dict[str, Any]:
    """As the driver understands it, whose words may hold a password."""
    if scheme == "mongodb+srv":  # is looked up when it connects
        uri = uri.replace("mongodb+srv", "mongodb", 1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            given = uri_parser.parse_uri(uri, warn=True)
        except (PyMongoError, ValueError) as error:
            problem = str(error)
            if "option" not in problem or "@" in problem:
                problem = "write :/?#[]@% in a part of it as %xx"
            raise InvalidArgument("url", f"not a MongoDB URL; {problem}") from None
    if said:
        raise InvalidArgument("url", str(said[0].message).partition("\n")[0])
    return dict(given)


def _seconds(own: dict[str, str]) -> float:
    try:
        value = float(own.get("timeout", 10.0))
    except ValueError:
        value = 0.0
    if not 1 <= value <= 3600:
        raise InvalidArgument("url option timeout", "must be a number from 1 to 3600")
    return value
