"""Why targets are missed: what the profile of a store says, and what it would take."""

from __future__ import annotations

WHY: dict[str, dict[str, str]] = {}
"""By store, then by the name of the measure."""
