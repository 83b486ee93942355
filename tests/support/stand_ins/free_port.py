"""Ports for servers that tests start."""

from __future__ import annotations

import itertools
import os
import socket
from contextlib import suppress

_FIRST, _COUNT = 20000, 10000
"""Lower than those that systems give to connections."""
_PORTS = itertools.count(_FIRST + os.getpid() * 97 % _COUNT)


def free_port() -> int:
    """A port that nobody listens on, given once; no connection is from it meanwhile."""
    while True:
        port = next(_PORTS)
        with socket.socket() as one, suppress(OSError):
            one.bind(("", port))
            return port
