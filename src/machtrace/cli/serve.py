"""``machtrace serve``: a warehouse over HTTP."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TypedDict, Unpack

import click

from machtrace.cli.options import complete_folders, count_type, parse_path
from machtrace.cli.warehouse.upkeep import raw_age_option, report_age_option, trust_clock_option

_PORT = 8760
_MAX_PORT = 65535


class _Retention(TypedDict):
    raw_age: float | None
    report_age: float | None
    trust_clock: bool


@click.command()
@click.argument("folder", metavar="FOLDER", type=parse_path, shell_complete=complete_folders)
@click.option(
    "--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Where to listen."
)
@click.option(
    "--port",
    metavar="N",
    default=_PORT,
    show_default=True,
    type=count_type(_MAX_PORT, least=0),
    help="The TCP port; 0 for any that is free.",
)
@click.option(
    "--new-token",
    "scope",
    type=click.Choice(["ingest", "symbols", "read", "admin"]),
    metavar="SCOPE",
    help="Print a new token (ingest, symbols, read, admin) and exit.",
)
@raw_age_option
@report_age_option
@trust_clock_option
@click.option(
    "--demo",
    is_flag=True,
    help="Create FOLDER, and send it the reports and later the symbols of a generated fleet.",
)
@click.option(
    "--otlp",
    is_flag=True,
    help="Receive profiles of OpenTelemetry, whose protocol is in development.",
)
def serve(
    *,
    folder: Path,
    host: str,
    port: int,
    scope: str | None,
    demo: bool,
    otlp: bool,
    **retention: Unpack[_Retention],
) -> None:
    """Serve the warehouse in FOLDER: reports and symbols in, answers out.

    A report is on the disk when it is acknowledged. If FOLDER has never had a token the server is
    open, and listens on this machine alone. Tokens are printed once: FOLDER has their hashes.
    Ctrl-C ends the server.
    """
    from machtrace.errors import ArgumentError, MissingExtraError

    try:
        from machtrace.server.limits import Limits
        from machtrace.server.running import is_loopback, listening_socket
        from machtrace.server.running import serve as run
        from machtrace.server.service import Service
        from machtrace.server.tokens import Scope, token_name
    except ImportError:
        raise MissingExtraError("serving a warehouse", extra="server") from None
    is_local = is_loopback(host)
    if demo:
        from machtrace.warehouse.warehouse import Warehouse

        Warehouse.create(folder).close()
    limits = Limits(**retention)
    service = Service(folder, limits, is_local=is_local, has_otlp=otlp)
    if scope is not None:
        token = service.tokens.create(Scope(scope))
        service.log.add("token", scope=scope, token=token_name(token))
        sys.stdout.write(f"{token}\n")
        return
    if not is_local and not len(service.tokens):
        raise ArgumentError(
            "without a token the server listens on this machine alone",
            remedy=f"create one: machtrace serve {folder} --new-token admin",
        )
    if service.tokens.problem:
        sys.stderr.write(f"machtrace: {service.tokens.problem}\n")
    with listening_socket(host, port) as listening:
        address = f"[{host}]" if ":" in host else host
        port = listening.getsockname()[1]
        _print(f"serving {folder} at http://{address}:{port}")
        if demo:
            from machtrace.cli.fleet_sender import send_fleet

            send_fleet(host, port, _print)
        run(service, listening)


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
