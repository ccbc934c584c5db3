"""`holdfast work`: run an application's handlers, in this process or in several."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import Any

import click

from holdfast import Holdfast, HoldfastError, InvalidArgument
from holdfast.cli import supervise
from holdfast.cli.base import App, Command, pass_app
from holdfast.cli.kinds import SECONDS
from holdfast.errors import did_you_mean

logger = logging.getLogger("holdfast.cli")


@click.command("work", cls=Command)
@click.argument("target", metavar="MODULE:ATTR")
@click.option("--queue", "queues", multiple=True, help="Only this one; may be given several times.")
@click.option("--concurrency", default=16, show_default=True, help="Handlers at once, a process.")
@click.option("--processes", type=click.IntRange(1, 1000), default=1, show_default=True)
@click.option(
    "--executor", type=click.Choice(["thread", "process"]), default="thread", show_default=True
)
@click.option("--time-limit", type=SECONDS, help="Ends a handler (executor process, or async).")
@click.option(
    "--grace", type=SECONDS, default=30.0, help="To finish in after a signal. Default 30."
)
@click.option("--until-empty", is_flag=True, help="End when nothing is ready.")
@click.option("--metrics", metavar="HOST:PORT", help="Serve metrics for Prometheus there.")
@click.option("--lifeline", type=int, hidden=True)
@pass_app
def work(app: App, target: str, processes: int, lifeline: int | None, **options: Any) -> None:
    """Run the handlers of an application.

    MODULE:ATTR is its Holdfast object, for example app:hf. Runs until SIGTERM or Ctrl-C.
    The first signal lets running handlers finish and gives back what never started; a second one
    ends at once. With several processes this one starts, restarts and stops them.
    """
    if app.url:
        raise click.UsageError("work has no --url: the application says which store it uses")
    module, name = _split(target)
    if processes > 1 and options["metrics"]:
        raise click.UsageError(
            "--metrics is for one process: each of several would need a port of its own"
        )
    if processes > 1:
        app.log_to_stderr(logging.INFO)
        command = _child_command(app, target, options)
        restart = not options["until_empty"]
        code = supervise.Supervisor(command, processes, restart=restart).run()
        raise click.exceptions.Exit(code)
    if lifeline is not None:
        _end_with_parent(lifeline)
    hf = _load(module, name)
    app.log_to_stderr(logging.INFO)
    raise click.exceptions.Exit(_work(hf, [*options.pop("queues")], options))


COMMANDS = [work]


def _work(hf: Holdfast, queues: list[str], options: dict[str, Any]) -> int:
    known = hf.handlers.queues()
    for queue in queues:
        if queue not in known:
            raise InvalidArgument(
                "--queue", f"no handler for {queue!r}; {did_you_mean(queue, known)}"
            )
    address = options.pop("metrics")
    with hf, _metrics(hf, address) if address else nullcontext():
        clean = hf.work(queues=queues or None, **options)
    return 0 if clean else 1


@contextmanager
def _metrics(hf: Holdfast, address: str) -> Generator[None]:
    """Served while the worker runs."""
    from holdfast.metrics import Metrics  # here: it needs an extra

    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal()):
        raise InvalidArgument("--metrics", f"write HOST:PORT, not {address!r}")
    number, stop = Metrics().watch(hf).serve(host.strip("[]"), int(port))
    logger.info("metrics on http://%s:%d/metrics", host, number)
    try:
        yield
    finally:
        stop()


def _split(target: str) -> tuple[str, str]:
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise InvalidArgument(target, "write MODULE:ATTR, for example app:hf")
    return module, name


def _load(module: str, name: str) -> Holdfast:
    """The object that a module holds; the current folder is looked in first."""
    sys.path.insert(0, os.getcwd())
    found: Any = _import(module)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise InvalidArgument(f"{module}:{name}", _no_such(found, part)) from None
    if not isinstance(found, Holdfast):
        problem = f"not what holdfast.connect gives, but of type {type(found).__name__}"
        raise InvalidArgument(f"{module}:{name}", problem)
    return found


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module + ".").startswith(error.name + "."):
            problem = f"no module {error.name!r} in {os.getcwd()} or on the Python path"
            raise InvalidArgument(module, problem) from error
        raise _broken(module, error) from error
    except HoldfastError:
        raise
    except (Exception, SystemExit) as error:
        raise _broken(module, error) from error


def _broken(module: str, error: BaseException) -> click.ClickException:
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return click.ClickException(f"importing {module} failed: {said} (-v shows where)")


def _no_such(found: Any, part: str) -> str:
    names = [name for name in dir(found) if isinstance(getattr(found, name, None), Holdfast)]
    hint = did_you_mean(part, names) if names else "it holds no Holdfast object"
    return f"no {part!r} there; {hint}"


def _child_command(app: App, target: str, options: dict[str, Any]) -> list[str]:
    """This command for one process."""
    words = [sys.executable, "-m", "holdfast", "work", target, "--processes", "1"]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if name == "queues":
            words += [word for queue in value for word in ("--queue", queue)]
        elif value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [flag, str(value)]
    return [*words, "--verbose"] if app.verbose else words


def _end_with_parent(lifeline: int) -> None:
    """Stop as on SIGTERM when the other end of the pipe closes: the parent was killed."""

    def watch() -> None:
        while os.read(lifeline, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="holdfast-lifeline", daemon=True).start()
