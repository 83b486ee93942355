"""A small process with several threads in different functions, to be captured from outside.

``python -m machtrace.cli.threaded_process`` writes ``ready`` to standard output when all its
threads have reached their functions, and exits when its standard input ends.
"""

from __future__ import annotations

import ctypes
import queue
import select
import socket
import sys
import threading
import zlib

PR_SET_NAME = 15
"""``linux/prctl.h``; a thread's name, of at most 15 bytes, for debuggers and ``ps``."""


def _name_thread(name: str) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def _compress(started: threading.Event) -> None:
    _name_thread("compressor")
    block = bytes(range(256)) * 4096
    started.set()
    while True:
        zlib.compress(block, 9)


def _descend(started: threading.Event, depth: int = 30) -> None:
    if depth:
        _descend(started, depth - 1)
        return
    _name_thread("recursion")
    started.set()
    queue.SimpleQueue[None]().get()


def _listen(started: threading.Event) -> None:
    _name_thread("network")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        started.set()
        server.accept()


def _poll(started: threading.Event) -> None:
    _name_thread("poller")
    reader, writer = socket.socketpair()
    with reader, writer:
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        started.set()
        poll.poll()


def main() -> None:
    """Start the threads, write ``ready``, and wait for the end of standard input."""
    for function in (_compress, _descend, _listen, _poll):
        started = threading.Event()
        threading.Thread(target=function, args=(started,), daemon=True).start()
        started.wait()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
