"""Folders for built programs."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the programs of this session's tests."""
    return tmp_path_factory.mktemp("agent")
