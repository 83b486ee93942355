"""A server with a made fleet."""

from __future__ import annotations

import pytest

from machtrace.warehouse.warehouse import Warehouse
from tests.server.pages.fleet import reports

REPORTS = 80


@pytest.fixture(scope="session")
def fleet(tmp_path_factory):
    """A warehouse with reports in two segments; what it has does not change."""
    folder = tmp_path_factory.mktemp("fleet") / "fleet"
    bodies = list(reports(REPORTS))
    with Warehouse.create(folder) as warehouse:
        for half in (bodies[: REPORTS // 2], bodies[REPORTS // 2 :]):
            warehouse.receive([(f"{number}.ips", body) for number, body in enumerate(half)])
            warehouse.flush()
        warehouse.receive([("broken.ips", b"\0nothing")])
        warehouse.flush()
        warehouse.regroup()
    return folder


@pytest.fixture(scope="session")
def served(fleet):
    """A client of a server of that fleet."""
    from tests.server.serving import running

    with running(fleet) as client:
        yield client
