"""The modules that the processes of a server share: the fork server imports them first.

The libraries of this module start no thread that a fork could lose: NumPy's linear algebra, which
nothing here uses, would.
"""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
for _name in ("duckdb", "machtrace.server.query_process", "machtrace.server.endpoints"):
    with suppress(ImportError):  # what needs it reports that
        import_module(_name)
