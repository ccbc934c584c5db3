"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from statistics import median

SYNCS = 50


def facts(folder: Path) -> dict[str, str]:
    return {
        "processor": f"{_processor()}, {len(os.sched_getaffinity(0))} cores",
        "system": f"{platform.system()} {platform.release()}",
        "file system": _file_system(folder),
        "fsync of 4 KiB": f"{_fsync_ms(folder):.2f} ms (median of {SYNCS})",
        "load before": f"{os.getloadavg()[0]:.1f}",
        "Python": platform.python_version(),
    }


class Steal:
    """The share of processor time that others took from this machine while it ran."""

    def __init__(self) -> None:
        self._before = _cpu_times()

    def percent(self) -> float:
        spent = [b - a for a, b in zip(self._before, _cpu_times(), strict=True)]
        return 100 * spent[7] / max(1, sum(spent[:8]))


def stolen_ms() -> list[float]:
    """Of each core since the machine began: when it had work, and its host ran another machine."""
    lines = Path("/proc/stat").read_text().splitlines()
    cores = [line.split() for line in lines if line.startswith("cpu") and line[3].isdigit()]
    return [int(core[8]) * 1000 / os.sysconf("SC_CLK_TCK") for core in cores]


def _cpu_times() -> list[int]:
    return [int(ticks) for ticks in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    """The type of the mount that holds the folder: the longest mount point above it."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    above = [m for m in mounts if folder.resolve().is_relative_to(m[1])]
    return max(above, key=lambda mount: len(mount[1]))[2] if above else "unknown"


def _fsync_ms(folder: Path) -> float:
    path = folder / "fsync"
    taken: list[float] = []
    with path.open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            file.write(b"x" * 4096)
            start = time.perf_counter()
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - start)
    path.unlink()
    return median(taken) * 1000
