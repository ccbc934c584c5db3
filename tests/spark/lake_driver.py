"""Archives a store once, and dies where it is told to, with all it started.

python lake_driver.py '{"url": ..., "lake": ..., "die_at": "after-write"}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any


def main(told: dict[str, Any]) -> None:
    import holdfast
    from holdfast import spark as hs
    from holdfast.spark.lake import archive, files

    def die(point: str) -> None:
        if told["die_at"] == point:
            os.killpg(os.getpgid(0), signal.SIGKILL)

    def dying(owner: Any, name: str, *, before: str = "", after: str = "") -> None:
        act: Callable[..., Any] = getattr(owner, name)

        def wrapped(*args: Any, **options: Any) -> Any:
            die(before)
            answer = act(*args, **options)
            die(after)
            return answer

        setattr(owner, name, wrapped)

    dying(files.Lake, "begin", after="after-begin")
    dying(archive._Run, "_dead", before="in-read")
    dying(files.Lake, "adopt", before="after-write", after="after-adopt")
    dying(files.Lake, "publish", after="after-publish")
    spark = hs.session("lake-driver", "local[2]")
    hs.archive(holdfast.connect(told["url"]), told["lake"], spark=spark)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
