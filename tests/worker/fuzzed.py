"""What handlers with bugs do, by name: in threads, on the event loop and in processes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

from holdfast import Done, Fail, Message, Retry
from holdfast.testing.conformance.careless import ERRORS, RESULTS, endless

FINE = "fine"


def raises(name: str) -> Callable[[Message], Any]:
    def act(_: Message) -> Any:
        raise ERRORS[name]()

    return act


def recursion(_: Message) -> Any:
    return endless()


def exit_handler(_: Message) -> Any:
    sys.exit("bye")


def chain(_: Message) -> Any:
    try:
        raise ValueError("\udc80 inner")
    except ValueError:
        raise RuntimeError("x" * random.randrange(100_000))  # noqa: B904


def thread_left_behind(_: Message) -> Any:
    def fail() -> None:
        with warnings.catch_warnings():
            sys.stdout.write("")

    thread = threading.Thread(target=fail, daemon=True)
    thread.start()
    return "left a thread"


def changes_message(message: Message) -> Any:
    message.headers.clear()
    message.headers["x"] = "\udcff"
    message.history.handled["somebody"] = object()
    raise ValueError("changed what it was given")


def generator(_: Message) -> Any:
    return (n for n in range(3))


def coroutine(_: Message) -> Any:
    async def run() -> str:
        return "awaited"

    return run()


def failing_coroutine(_: Message) -> Any:
    async def run() -> str:
        raise KeyboardInterrupt

    return run()


def retries(_: Message) -> Any:
    return Retry("again", delay=0)


def a_class(_: Message) -> Any:
    return Fail


def done_with_anything(_: Message) -> Any:
    raise Done({"x": {1, 2}})


DEAD: dict[str, Callable[[Message], Any]] = {
    **{f"raise {name}": raises(name) for name in ERRORS},
    "recursion": recursion,
    "sys.exit": exit_handler,
    "chain": chain,
    "changes its message": changes_message,
    "generator": generator,
    "failing coroutine": failing_coroutine,
    "retries": retries,
    "a class": a_class,
}
DONE: dict[str, Callable[[Message], Any]] = {
    **{f"return {name}": lambda _, name=name: RESULTS[name]() for name in RESULTS},
    "a thread left behind": thread_left_behind,
    "coroutine": coroutine,
    "done with anything": done_with_anything,
}


def kills_itself(_: Message) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def leaves(_: Message) -> Any:
    os._exit(0)


def crashes(_: Message) -> Any:
    os.kill(os.getpid(), signal.SIGABRT)


def closes_everything(_: Message) -> Any:
    os.closerange(3, 65536)
    return "and goes on"


def closes_its_output(_: Message) -> Any:
    sys.stdout.close()
    sys.stderr.close()
    raise ValueError("after that")


IN_PROCESSES = {
    "kills itself": kills_itself,
    "leaves": leaves,
    "crashes": crashes,
    "closes everything": closes_everything,
}
"""Each takes a process with it, which the next message has to wait for."""


async def leave_task() -> None:
    raise SystemExit("left behind")


_left: list[Any] = []


def stops_loop(_: Message) -> Any:
    asyncio.get_running_loop().stop()
    return "stopped it"


def leaves_task(_: Message) -> Any:
    task = asyncio.get_running_loop().create_task(leave_task())
    task.add_done_callback(lambda task: task.exception())
    return "left a task"


def cancels_itself(_: Message) -> Any:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return "cancelled"


ON_LOOP_DONE = {"stops the loop": stops_loop, "leaves a task": leaves_task}
ON_LOOP_DEAD = {"cancels itself": cancels_itself}
ALL = {**DEAD, **DONE, **IN_PROCESSES, **ON_LOOP_DONE, **ON_LOOP_DEAD}


def handle(what: str, message: Message) -> Any:
    if what == FINE:
        return "shipped"
    return ALL[what](message)


async def handle_async(what: str, message: Message) -> Any:
    await asyncio.sleep(0)
    if what == FINE:
        return "shipped"
    result = ALL[what](message)
    await asyncio.sleep(0)  # where a cancelled task is told so
    return result
