"""A generated fleet that sends its reports to a server, and its symbols later."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from contextlib import closing, suppress
from threading import Thread
from typing import Any

from machtrace.cli.fleet import fleet_reports, fleet_symbols
from machtrace.errors import MachtraceError, TargetError

_TIMEOUT = 60.0
_PAUSE = 0.2
_SHOWN = 4
"""Issues that are printed."""
_MAX_SUCCESS = 299


def send_fleet(host: str, port: int, on_line: Callable[[str], None]) -> Thread:
    """Send the fleet's reports and symbols in the background.

    Args:
        host: the server's address.
        port: its port.
        on_line: is called with each line about the progress, and at the end with the address.
    """

    def run() -> None:
        # The server may be stopped at any time.
        with suppress(OSError, http.client.HTTPException):
            try:
                with closing(_Client(host, port)) as client:
                    _send(client, on_line)
            except MachtraceError as error:
                on_line(f"the fleet was not sent: {error}")

    thread = Thread(target=run, name="machtrace-fleet", daemon=True)
    thread.start()
    return thread


def _send(client: _Client, on_line: Callable[[str], None]) -> None:
    last, number, size = "", 0, 0
    for report in fleet_reports():
        answer = client.request("POST", f"/v1/reports?name={report.name}", report.data)
        last, number, size = answer["ids"][-1], number + 1, size + len(report.data)
    on_line(f"{number} reports of a generated fleet sent, {size / 1e6:.1f} MB")
    client.wait(lambda: client.request("GET", f"/v1/reports/{last}")["state"] != "stored")
    on_line("the most frequent issues, by offsets:")
    client.wait(lambda: len(client.issues()) == _SHOWN)
    _print_issues(client, on_line)
    for symbols in fleet_symbols():
        client.request("PUT", f"/v1/symbols?name={symbols.name}", symbols.data)
    client.wait(lambda: not any(issue["title"].startswith("0x") for issue in client.issues()))
    on_line("their symbols sent; the same issues, by names:")
    _print_issues(client, on_line)
    on_line(f"pages: http://{client.address}/")


def _print_issues(client: _Client, on_line: Callable[[str], None]) -> None:
    for issue in client.issues():
        on_line(f"  {issue['reports']:4}  {issue['kind']:5}  {issue['title']}")


class _Client:
    """Requests of one connection."""

    def __init__(self, host: str, port: int) -> None:
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT)

    def request(self, method: str, path: str, body: bytes | None = None) -> Any:  # noqa: ANN401 - any JSON
        """Return the JSON of an answer.

        Raises:
            TargetError: the server refused the request.
        """
        self._connection.request(method, path, body)
        response = self._connection.getresponse()
        text = response.read()
        if response.status > _MAX_SUCCESS:
            raise TargetError(f"{method} {path}: {response.status} {text.decode(errors='replace')}")
        return json.loads(text)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def issues(self) -> list[dict[str, Any]]:
        """Return the most frequent issues."""
        issues: list[dict[str, Any]] = self.request("GET", f"/v1/issues?limit={_SHOWN}")["issues"]
        return issues

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Return once something is the case.

        Raises:
            TargetError: it takes too long.
        """
        deadline = time.monotonic() + _TIMEOUT
        while not is_done():
            if time.monotonic() > deadline:
                raise TargetError(f"the server has not finished after {_TIMEOUT:g} seconds")
            time.sleep(_PAUSE)
