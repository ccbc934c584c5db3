"""What the loops of one worker share."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from holdfast.queue.context import Context
from holdfast.work.leaser import Specs
from holdfast.work.loops.inflight import InFlight
from holdfast.work.loops.trouble import Trouble


class Shared:
    def __init__(self, context: Context, queues: Sequence[str]) -> None:
        self.context = context
        self.specs = Specs(context, queues)
        self.trouble: Trouble = {}
        self.stop = threading.Event()
        """Lease no more."""
        self.quit = threading.Event()
        """Everything is settled, or given up."""
        self.flight = InFlight(self.quit)
