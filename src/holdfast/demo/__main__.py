"""`python -m holdfast.demo`: exits 0 when every number fits, 1 when one does not."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from holdfast.demo import camera
from holdfast.demo.screen import Screen
from holdfast.errors import MissingExtra

SWEEP_EVERY_MS = 200


def main() -> int:
    args = _arguments()
    screen = Screen(plain=args.plain)
    parts = {"spark": not args.no_spark, "pictures": not args.no_pictures}
    try:
        if args.keep is not None:
            return run(screen, args.keep.absolute(), keep=True, **parts)
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
            return run(screen, Path(folder, "shop.db"), keep=False, **parts)
    except KeyboardInterrupt:
        return 130


def run(screen: Screen, path: Path, *, keep: bool, spark: bool, pictures: bool) -> int:
    _set_environment(path)
    began = time.monotonic()
    where = "kept" if keep else "removed at the end; --keep FILE keeps it"
    screen.title("Holdfast: a shop's worst day", f"SQLite file {path} ({where})")
    try:
        from holdfast.demo import shop, story, sums  # opens the store

        with shop.hf:
            seen = story.tell(screen)
            sums.life_of_one(screen, seen)
            sums.the_day(screen, seen)
            fits = sums.add_up(screen, seen)
            if spark:
                fits = _on_spark(screen, _pictures(path, keep=keep) / "report.html") and fits
            if pictures:
                one = sums.most_lived(seen).message.id
                camera.tell(screen, os.environ["SHOP_URL"], _pictures(path, keep=keep), one)
    except Exception as error:
        screen.bad(f"{type(error).__name__}: {error}")
        return 1
    took = f"{time.monotonic() - began:.1f} s"
    if fits:
        screen.good(f"\nEvery order was finished once, and every number fits. {took}")
    else:
        screen.bad(f"\nNot every number fits. {took}")
    if keep:
        url = f"sqlite:///{quote(str(path))}"
        screen.say(f"\nLook around: holdfast --url {url} log orders")
        screen.say(f"In the dashboard: holdfast --url {url} serve, then http://127.0.0.1:8080/")
    else:
        screen.say("\nLook at it live: script/demo --keep shop.db, then serve what it says")
    return 0 if fits else 1


def _pictures(path: Path, *, keep: bool) -> Path:
    """Beside what is kept; else where the next demo puts its own over them."""
    if keep:
        return path.with_name(f"{path.name}-pictures")
    from platformdirs import user_cache_path

    return user_cache_path("holdfast") / "demo"


def _on_spark(screen: Screen, page: Path) -> bool:
    from holdfast.demo import lake

    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-lake-") as folder:
            return lake.tell(screen, Path(folder), page)
    except MissingExtra as missing:
        screen.say(f"Left out: {missing}")
        return True


def _set_environment(path: Path) -> None:
    """Before the shop is imported, for it and for worker A: nothing of the user's own set-up."""
    for name in [*os.environ]:
        if name.startswith("HOLDFAST_"):
            del os.environ[name]
    os.environ["HOLDFAST_OVERDUE_CHECK_INTERVAL_MS"] = str(SWEEP_EVERY_MS)
    os.environ["SHOP_URL"] = f"sqlite:///{quote(str(path))}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="script/demo", description=__doc__)
    parser.add_argument("--plain", action="store_true", help="no colours, no live view")
    parser.add_argument("--no-spark", action="store_true", help="leave out the part on Spark")
    parser.add_argument("--no-pictures", action="store_true", help="take none of the dashboard")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="a new SQLite file to leave")
    args = parser.parse_args()
    if args.keep is not None and args.keep.exists():
        parser.error(f"{args.keep} exists already")
    return args


if __name__ == "__main__":
    sys.exit(main())
