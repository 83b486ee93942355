"""Threads in Python functions of all kinds; the program prints them, and then nothing moves."""

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
    """Call through C, which starts another run of the interpreter loop."""
    return next(map(lambda _: inner(), [0]))  # noqa: C417 - C is meant


class Klass:
    """Methods have qualified names."""

    def method(self, depth):
        """Call without leaving the run of the loop."""
        if depth:
            self.method(depth - 1)
        else:
            code = compile("\n\ndone.wait()", "/no/such/näme-\udce9-函数.py", "exec")
            exec(code, {"done": done})  # noqa: S102 - a file that is none


def größe_函数():  # noqa: N802, PLC2401 - meant
    """Have a name beyond ASCII."""
    through_c(lambda: Klass().method(3))


def generate():
    """Be a generator, which has a frame of its own."""
    yield 1
    größe_函数()
    yield 2


def worker():
    """Iterate."""
    for _ in generate():
        pass


def recurse(depth):
    """Recurse through C."""
    if depth:
        through_c(lambda: recurse(depth - 1))
    else:
        done.wait()


def without_lines():
    """Block; the code object is changed to have no lines."""
    done.wait()


without_lines = types.FunctionType(
    without_lines.__code__.replace(co_linetable=b""), globals(), "without_lines"
)


async def outer():
    """Await."""
    await inner()


async def inner():
    """Block the event loop."""
    threading.Thread(target=report, name="reporter").start()
    done.wait()


def waits(frame):
    """Return whether a started thread has come to the line on which it blocks."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno or 0)
    return line.strip() == "waiter.acquire()" and frame.f_back.f_locals["self"] is done


def report():
    """Print every other thread's functions once all of them wait."""
    own = threading.get_ident()
    frames = {}
    while [waits(frame) for frame in frames.values()] != [True] * THREADS:
        time.sleep(0.01)
        frames = sys._current_frames()  # noqa: SLF001 - as documented
        del frames[own]
    functions = {}
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
        functions[thread.native_id] = rows
    sys.stdout.write(f"{json.dumps(functions)}\nready\n")
    sys.stdout.flush()


done = threading.Event()
for target in (worker, without_lines, lambda: recurse(LEVELS)):
    threading.Thread(target=target, daemon=True).start()
asyncio.run(outer())
