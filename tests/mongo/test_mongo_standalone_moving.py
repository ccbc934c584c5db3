"""Moves to a queue of another home on a server without transactions: each is several writes."""

from __future__ import annotations

import pytest

from holdfast.testing.conformance.fixtures import *
from holdfast.testing.conformance.moving import *


@pytest.fixture
def store_name() -> str:
    return "mongo-standalone"
