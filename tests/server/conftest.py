"""Servers of a warehouse on the loopback interface, in a thread of this process."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from machtrace.warehouse.warehouse import Warehouse

collect_ignore_glob = [] if find_spec("uvicorn") and find_spec("duckdb") else ["test_*.py"]


@pytest.fixture
def folder(tmp_path):
    """An empty warehouse."""
    Warehouse.create(tmp_path / "w").close()
    return tmp_path / "w"


@pytest.fixture
def client(folder):
    """A client of a server without tokens."""
    from tests.server.serving import running

    with running(folder) as client:
        yield client
