"""`holdfast serve`: the store over HTTP and gRPC."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast import MissingExtra
from holdfast.cli.base import App, Command, pass_app
from holdfast.cli.kinds import LIMIT, SECONDS

if TYPE_CHECKING:
    from holdfast.server.run import Server

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("serve", cls=Command)
@click.option("--http", default="127.0.0.1:8080", show_default=True, metavar="HOST:PORT")
@click.option("--grpc", default="127.0.0.1:8081", show_default=True, metavar="HOST:PORT")
@click.option("--no-http", is_flag=True, help="Only gRPC.")
@click.option("--no-grpc", is_flag=True, help="Only HTTP.")
@click.option(
    "--auth",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Whether a key is needed. auto: unless every address is loopback.",
)
@click.option("--tls-cert", type=FILE, help="A certificate (PEM), for both doors.")
@click.option("--tls-key", type=FILE, help="Its key (PEM).")
@click.option("--max-body", type=LIMIT, help="Bytes of one request. Default 32 MiB.")
@click.option("--max-wait", type=SECONDS, help="Of a long poll. Default 60.")
@click.option("--max-polls", type=LIMIT, help="That wait at one time. Default 10000.")
@click.option("--max-streams", type=LIMIT, help="Of events and leases at one time. Default 1000.")
@click.option("--max-header", type=LIMIT, help="Bytes of a request's head. Default 64 KiB.")
@click.option("--head-time", type=SECONDS, help="For the head to arrive. Default 10.")
@click.option("--body-time", type=SECONDS, help="For the body to arrive. Default 30.")
@click.option("--max-connections", type=LIMIT, help="Over HTTP, at one time. Default 12000.")
@click.option("--max-per-client", type=LIMIT, help="Of these, of one address. Default 2000.")
@click.option("--max-rpc-connections", type=LIMIT, help="Over gRPC, at one time. Default 2000.")
@pass_app
def serve(app: App, **options: Any) -> None:
    """Serve a store to other programs, other languages and people.

    HTTP has the dashboard at /, its operations under /v1, events at /events, metrics at /metrics,
    health at /health/live and /health/ready, and a description at /docs and /openapi.json. Overdue
    messages are swept and redrives worked in here as well. The first signal lets calls finish; a
    second one ends at once.
    """
    try:
        from holdfast.server.run import run
    except ModuleNotFoundError as error:
        raise MissingExtra("a server needs: pip install 'holdfast[server]'") from error
    app.log_to_stderr(logging.INFO)
    with app.connect() as hf:
        run(_server(hf, options), _say)


def _server(hf: Any, options: dict[str, Any]) -> Server:
    from holdfast.server.limits import Limits
    from holdfast.server.run import Address, Server, Tls

    if (options["tls_cert"] is None) != (options["tls_key"] is None):
        raise click.UsageError("--tls-cert and --tls-key go together")
    tls = Tls(options["tls_cert"], options["tls_key"]) if options["tls_cert"] else None
    given = {
        "body_bytes": options["max_body"],
        "wait_seconds": options["max_wait"],
        "polls": options["max_polls"],
        "streams": options["max_streams"],
        "header_bytes": options["max_header"],
        "head_seconds": options["head_time"],
        "read_seconds": options["body_time"],
        "connections": options["max_connections"],
        "client_connections": options["max_per_client"],
        "rpc_connections": options["max_rpc_connections"],
    }
    return Server(
        hf,
        http=None if options["no_http"] else Address.parse("http", options["http"]),
        grpc=None if options["no_grpc"] else Address.parse("grpc", options["grpc"]),
        auth={"auto": None, "on": True, "off": False}[options["auth"]],
        tls=tls,
        limits=Limits(**{name: value for name, value in given.items() if value is not None}),
    )


def _say(server: Server) -> None:
    secure = "s" if server.is_secure else ""
    if server.http is not None:
        click.echo(f"HTTP on http{secure}://{server.http}, the dashboard at /, described at /docs")
    if server.grpc is not None:
        click.echo(f"gRPC on grpc{secure}://{server.grpc}")
    if server.auth:
        click.echo("a key is needed: holdfast key create --role admin --queues '*'")
    else:
        click.echo("no key is needed: only this machine is served")


COMMANDS = [serve]
