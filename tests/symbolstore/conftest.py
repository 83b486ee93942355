"""A store, and files to add to it."""

import pytest

from machtrace.symbolstore.store import SymbolStore
from tests.support.writers.symbol_files import APP, DSYM


@pytest.fixture
def store(tmp_path):
    """An empty store."""
    return SymbolStore(tmp_path / "store")


@pytest.fixture
def bundle(tmp_path):
    """An app bundle and its dSYM, as Xcode lays them out."""
    inside = tmp_path / "App.app.dSYM" / "Contents" / "Resources" / "DWARF"
    inside.mkdir(parents=True)
    (inside / "App").write_bytes(DSYM)
    app = tmp_path / "App.app"
    app.mkdir()
    (app / "App").write_bytes(APP)
    (app / "Info.plist").write_text("<plist/>")
    return app, tmp_path / "App.app.dSYM"
