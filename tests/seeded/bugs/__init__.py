"""Bugs that the tests must catch. When code named here changes, change the bug with it."""

from __future__ import annotations

from tests.seeded.bugs import (
    batches,
    mongo,
    ordering,
    postgres,
    redis,
    redriving,
    rules,
    server,
    sqlite,
    working,
)

BUGS = [
    *rules.BUGS,
    *working.BUGS,
    *redriving.BUGS,
    *batches.BUGS,
    *ordering.BUGS,
    *server.BUGS,
    *sqlite.BUGS,
    *postgres.BUGS,
    *redis.BUGS,
    *mongo.BUGS,
]
