"""Threads in Python functions of all sorts; what they are is printed, and then nothing moves."""

import asyncio
import json
import linecache
import os
import sys
import threading
import time
import types

LEVELS = 30
THREADS = 4


def through_c(inner):
    """A run of the loop of its own for what it calls."""
    return next(map(lambda _: inner(), [0]))  # noqa: C417 - C is meant


class Klass:
    """Methods have qualified names."""

    def method(self, depth):
        """Calls without leaving the run."""
        if depth:
            self.method(depth - 1)
        else:
            code = compile("\n\ndone.wait()", "/no/such/näme-\udce9-函数.py", "exec")
            exec(code, {"done": done})  # noqa: S102 - a file that is none


def größe_函数():  # noqa: N802, PLC2401 - meant
    """A name beyond ASCII."""
    through_c(lambda: Klass().method(3))


def generate():
    """A generator's frame is its own."""
    yield 1
    größe_函数()
    yield 2


def worker():
    """Iterates."""
    for _ in generate():
        pass


def recurse(depth):
    """Through C each time."""
    if depth:
        through_c(lambda: recurse(depth - 1))
    else:
        done.wait()


def without_lines():
    """Its code has been made to have no lines."""
    done.wait()


without_lines = types.FunctionType(
    without_lines.__code__.replace(co_linetable=b""), globals(), "without_lines"
)


async def outer():
    """Awaits."""
    await inner()


async def inner():
    """Blocks the event loop."""
    threading.Thread(target=tell, name="teller").start()
    done.wait()


def waits(frame):
    """Whether it has come to the line that it stays in: a thread that is started is waited for."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno or 0)
    return line.strip() == "waiter.acquire()" and frame.f_back.f_locals["self"] is done


def tell():
    """Print every other thread's functions once all of them wait."""
    own = threading.get_ident()
    frames = {}
    while [waits(frame) for frame in frames.values()] != [True] * THREADS:
        time.sleep(0.01)
        frames = sys._current_frames()  # noqa: SLF001 - as documented
        del frames[own]
    found = {}
    for thread in threading.enumerate():
        if thread.ident == own:
            continue
        rows = []
        frame = frames[thread.ident]
        while frame is not None:
            code = frame.f_code
            path = os.fsencode(code.co_filename).hex()
            rows.append((code.co_qualname, path, frame.f_lineno))
            frame = frame.f_back
        found[thread.native_id] = rows
    sys.stdout.write(f"{json.dumps(found)}\nready\n")
    sys.stdout.flush()


done = threading.Event()
for target in (worker, without_lines, lambda: recurse(LEVELS)):
    threading.Thread(target=target, daemon=True).start()
asyncio.run(outer())
