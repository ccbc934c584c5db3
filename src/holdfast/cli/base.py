"""What every command shares: the global options, the way to the store, errors and exit codes."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import click

import holdfast
from holdfast import Holdfast, HoldfastError, Queue, QueueNotFound, StoreUnavailable
from holdfast.cli.show import clean
from holdfast.errors import did_you_mean
from holdfast.model import settings

EXIT_CODES = {
    "INVALID_ARGUMENT": 2,
    "ABORTED": 3,
    "NOT_FOUND": 4,
    "FAILED_PRECONDITION": 5,
    "UNAUTHENTICATED": 6,
    "PERMISSION_DENIED": 6,
}
"""By the code of a HoldfastError; every other error is 1."""
INTERRUPTED = 130
PIPE_CLOSED = 141
LOG_FORMAT = "%(asctime)s %(levelname)-7s [%(process)d] %(message)s"


class App:
    """What the global options said, and the way to the store."""

    def __init__(self) -> None:
        self.url: str | None = None
        self.json = False
        self.verbose = False

    def connect(self) -> Holdfast:
        self.log_to_stderr()
        return holdfast.connect(self.store_url())

    def store_url(self) -> str:
        return self.url or settings.load().url or default_url()

    def url_from(self) -> str:
        """Who named the store."""
        if self.url:
            return "--url"
        return "HOLDFAST_URL" if settings.load().url else "default"

    def log_to_stderr(self, level: int = logging.WARNING) -> None:
        """Log lines for people, unless the program has set up logging of its own."""
        logging.basicConfig(format=LOG_FORMAT, level=logging.INFO if self.verbose else level)
        if self.verbose:
            logging.getLogger("holdfast").setLevel(logging.DEBUG)


pass_app = click.make_pass_decorator(App)


def default_url() -> str:
    """A SQLite file in the user's data folder, which is made when it is not there."""
    from platformdirs import user_data_path

    folder = user_data_path("holdfast")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"{folder}: {error.strerror}; name a store with --url") from error
    return "sqlite:///" + quote(str(folder / "holdfast.db"))


def find_queue(hf: Holdfast, name: str) -> Queue:
    """A queue that is there; else an error that suggests the near name."""
    return hf.queue(name, create=False)


def near_dlq(hf: Holdfast, name: str) -> QueueNotFound:
    """The error for a dead-letter queue that is not there."""
    known = [spec.name for spec in hf.store.queues() if spec.name.endswith(".dlq")]
    return QueueNotFound(f"no queue {name!r}; {did_you_mean(name, known)}")


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed. Nobody to ask and no --yes: refuse."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("stdin is no terminal to ask on; pass --yes if you mean it")
    if not click.confirm(question, err=True):
        raise click.ClickException("nothing was changed")


@contextmanager
def busy(doing: str) -> Generator[None, None, None]:
    """A spinner on a terminal, silence elsewhere."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(doing):
        yield


class Command(click.Command):
    """A command that also takes the global options after its name."""

    def __init__(self, *args: Any, **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        self.params = [*self.params, *_global_options()]


class Group(click.Group):
    command_class = Command


class Root(Group):
    """Turns every error into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands]  # in the order of the life of a message, not of the alphabet

    def main(self, *args: Any, **extra: Any) -> Any:
        app = App()
        code: Any = 0
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False, "obj": app})
        except click.Abort:
            code = INTERRUPTED
        except (HoldfastError, click.ClickException) as error:
            code = _report(error, verbose=app.verbose)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            raise click.exceptions.Exit(_pipe_closed()) from None
        return answer


def exit_code(error: HoldfastError) -> int:
    return EXIT_CODES.get(error.code, 1)


def tell(problem: str) -> None:
    click.echo(f"error: {clean(problem)}", err=True)


def _report(error: HoldfastError | click.ClickException, *, verbose: bool) -> int:
    if verbose:
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    if isinstance(error, HoldfastError):
        tell(str(error))
        return exit_code(error)
    if isinstance(error, _HELP):
        click.echo(error.format_message(), err=True)
        return error.exit_code
    tell(error.format_message())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        click.echo(f"try: {error.ctx.command_path} --help", err=True)
    return error.exit_code


# A group without a command; older clicks print the help themselves.
_HELP: tuple[type[click.ClickException], ...] = (
    (click.exceptions.NoArgsIsHelpError,) if hasattr(click.exceptions, "NoArgsIsHelpError") else ()
)


def _pipe_closed() -> int:
    """Whoever read our output has seen enough. Python must not complain when it flushes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return PIPE_CLOSED


def _global_options() -> list[click.Parameter]:
    return [
        _global("--url", "url", "The store, for example sqlite:///jobs.db.", metavar="URL"),
        _global("--json", "json", "JSON lines for programs.", is_flag=True),
        _global("-v --verbose", "verbose", "Log lines and tracebacks.", is_flag=True),
    ]


def _global(flags: str, field: str, help: str, **attrs: Any) -> click.Option:
    return click.Option(
        [*flags.split(), field], help=help, expose_value=False, callback=_keep(field), **attrs
    )


def _keep(field: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        app = ctx.find_object(App)
        if app is not None and value:
            setattr(app, field, value)

    return keep


@click.command(cls=Root, params=_global_options())
@click.version_option(holdfast.__version__, message="holdfast %(version)s")
def root() -> None:
    """A durable message queue that does not let go of a message until somebody has finished it.

    The store is --url, else HOLDFAST_URL, else a SQLite file in your data folder. Exit codes: 0
    done, 1 failed, 2 wrong arguments, 3 lease lost, 4 not found, 5 not in this state, 6 not
    allowed.
    """
