"""A program with a main loop: the Python counterpart of ``loop.c``, with the same commands.

``loop.py MODE [LAUNCH_MS]``; the shared object of ``keep_gil.c`` is in ``$KEEP_GIL``. With a path
in ``$WATCH_SELF`` it watches itself, with its record there, and states its incidents.
"""

import asyncio
import collections
import contextlib
import ctypes
import fcntl
import gc
import json
import os
import queue
import re
import selectors
import socket
import subprocess
import sys
import threading
import time
import zlib

TRUTH = 3
RELEASE = 4
GIL = ctypes.PyDLL(os.environ["KEEP_GIL"])
C = ctypes.CDLL(os.environ["KEEP_GIL"])
TEXT = b"".join(b"%d %d;" % (n, n * n % 977) for n in range(60_000))
DOCUMENT = json.dumps([{"number": n, "names": ["a", "b", str(n)]} for n in range(60_000)])
BACKTRACKING = re.compile(r"(a+)+$")


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Truth:
    """Stated times of the running callback."""

    began = ended = cpu = 0


def begin():
    Truth.cpu = time.thread_time_ns()
    Truth.began = now()


def end():
    Truth.ended = now()
    Truth.cpu = time.thread_time_ns() - Truth.cpu


def until_release(ms):
    if ms:
        time.sleep(ms / 1000)
    else:
        os.read(RELEASE, 1)


def later(ms, act):
    """Act in another thread, in a moment or when released."""

    def run():
        until_release(ms)
        act()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def sleep_in_callback(ms):
    if ms:
        time.sleep(ms / 1000)
    else:
        os.read(RELEASE, 1)


def read_config(ms):
    reader, writer = os.pipe()
    later(ms, lambda: os.write(writer, b"x"))
    os.read(reader, 1)
    os.close(reader)
    os.close(writer)


def receive_reply(ms):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        later(ms, lambda: theirs.send(b"x"))
        ours.recv(1)


def lock_file_in_callback(ms):
    path = f"hangs-{os.getpid()}.pylock"
    with open(path, "wb") as ours, open(path, "wb") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        thread = later(ms, lambda: fcntl.flock(theirs, fcntl.LOCK_UN))
        fcntl.flock(ours, fcntl.LOCK_EX)
        thread.join()


def take_lock(ms):
    lock = threading.Lock()
    lock.acquire()
    later(ms, lock.release)
    lock.acquire()


def take_rlock(ms):
    lock = threading.RLock()
    is_taken = threading.Event()

    def run():
        with lock:
            is_taken.set()
            until_release(ms)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    is_taken.wait()
    with lock:
        pass


def join_worker(ms):
    later(ms, lambda: None).join()


def run_child(ms):
    if ms:
        subprocess.run(["/bin/sleep", str(ms / 1000)], check=True)
    else:
        subprocess.run(
            ["/bin/head", "-c", "1"], stdin=RELEASE, stdout=subprocess.DEVNULL, check=True
        )


def read_child(ms):
    subprocess.run(
        ["/bin/sleep", str(ms / 1000)], check=True, capture_output=True, text=True, timeout=99
    )


def burn_in_one(ms):
    deadline = time.thread_time_ns() + ms * 1_000_000 if ms else 0
    if not ms:
        flag = []
        later(0, lambda: flag.append(1))
    while True:
        total = 0
        for number in range(20_000):
            total += number
        if time.thread_time_ns() >= deadline if ms else flag:
            break


def make_leaf(number):
    # A code object of its own, and so a function of its own in stacks.
    source = f"def leaf_{number}():\n for spin in range({200 + 40 * number}): spin * spin\n"
    names = {}
    exec(source, names)  # noqa: S102 (constant text)
    return names[f"leaf_{number}"]


LEAVES = [make_leaf(number) for number in range(16)]


def loop_over_leaves(ms):
    deadline = time.thread_time_ns() + ms * 1_000_000
    count = 0
    while time.thread_time_ns() < deadline:
        for _ in range(48):
            LEAVES[count * 7 % 16]()
            count += 1


def make_short_task(number):
    source = (
        f"def short_task_{number}(ms):\n"
        " deadline = thread_time_ns() + ms * 1_000_000\n"
        " while thread_time_ns() < deadline:\n"
        "  for number in range(5000): number * number\n"
    )
    names = {"thread_time_ns": time.thread_time_ns}
    exec(source, names)  # noqa: S102 (constant text)
    return names[f"short_task_{number}"]


SHORT_TASKS = [make_short_task(number) for number in range(8)]


def costly_a(ns):
    deadline = time.thread_time_ns() + ns
    while time.thread_time_ns() < deadline:
        for number in range(20_000):
            number * number


def cheap_b(ns):
    deadline = time.thread_time_ns() + ns
    while time.thread_time_ns() < deadline:
        for number in range(5000):
            number * number


def a_then_b(ms):
    costly_a(ms * 990_000)
    cheap_b(ms * 10_000)


def a_then_more_b(ms):
    # At the threshold of 100 ms the costly function has returned.
    costly_a(ms * 760_000)
    cheap_b(ms * 240_000)


def compress_text(ms):
    deadline = time.thread_time_ns() + ms * 1_000_000
    while time.thread_time_ns() < deadline:
        zlib.compress(TEXT, 9)


def parse_document(ms):
    deadline = time.thread_time_ns() + ms * 1_000_000
    while time.thread_time_ns() < deadline:
        json.loads(DOCUMENT)


def match_pattern(ms):
    # Each further letter doubles the time; at 22 it is about a tenth of a second.
    deadline = time.thread_time_ns() + ms * 1_000_000
    while time.thread_time_ns() < deadline:
        BACKTRACKING.match("a" * 22 + "b")


def call_keep_gil(ms):
    GIL.compute_in_c(ms)


def call_sleep_with_gil(ms):
    GIL.sleep_in_c(ms)


def call_without_gil(ms):
    C.compute_in_c(ms)


def wait_for_gil(ms):
    """Compute while another thread keeps the interpreter lock."""
    is_over = []

    def keep():
        GIL.sleep_in_c(ms)
        is_over.append(1)

    threading.Thread(target=keep, daemon=True, name="gil-keeper").start()
    while not is_over:
        pass


def run_nested_loop(ms):
    """Run another event loop to its end in a callback, as nest_asyncio does."""
    outer = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    nested = asyncio.new_event_loop()
    try:
        nested.run_until_complete(asyncio.sleep(ms / 1000))
    finally:
        nested.close()
        asyncio._set_running_loop(outer)


def run_modal_loop(ms):
    """Serve events of a nested loop: nothing hangs."""
    deadline = time.monotonic() + ms / 1000
    with selectors.DefaultSelector() as selector:
        while time.monotonic() < deadline:
            selector.select(0.015)


GARBAGE = []


def collect_garbage(ms):
    # The number of cycles follows the planned time: roughly 25 ns for each object visited.
    for _ in range(ms * 4000):
        cycle = []
        cycle.append(cycle)
        GARBAGE.append(cycle)
    begin()
    gc.collect()
    end()
    GARBAGE.clear()


def start_worker(ms):
    later(1, lambda: C.compute_in_c(ms))


def spawn(_ms):
    subprocess.Popen(["/bin/true"]).wait()


def nothing(_ms):
    pass


def leave(_ms):
    os._exit(0)


ACTIONS = {
    "sleep": sleep_in_callback,
    "read": read_config,
    "recv": receive_reply,
    "flock": lock_file_in_callback,
    "lock": take_lock,
    "rlock": take_rlock,
    "join": join_worker,
    "child": run_child,
    "child-output": read_child,
    "burn": burn_in_one,
    "leaves": loop_over_leaves,
    "a-then-b": a_then_b,
    "a-then-more-b": a_then_more_b,
    "zlib": compress_text,
    "json": parse_document,
    "regex": match_pattern,
    "gil-burn": call_keep_gil,
    "gil-sleep": call_sleep_with_gil,
    "c-burn": call_without_gil,
    "gil-wait": wait_for_gil,
    "nested": run_nested_loop,
    "modal": run_modal_loop,
    "gc": collect_garbage,
    "worker": start_worker,
    "spawn": spawn,
    "nothing": nothing,
    "exit": leave,
}


def state(line):
    os.write(TRUTH, json.dumps(line).encode() + b"\n")


def execute(task):
    number, action, ms = task
    if action == "gc":
        ACTIONS[action](ms)
    elif action == "short":
        SHORT_TASKS.append(SHORT_TASKS.pop(0))
        begin()
        SHORT_TASKS[0](ms)
        end()
    else:
        begin()
        ACTIONS[action](ms)
        end()
    state(
        {
            "id": number,
            "action": action,
            "began": Truth.began,
            "ended": Truth.ended,
            "cpu": Truth.cpu,
        }
    )


def watched():
    """Watch this program until the end of the block, if that is requested."""
    record = os.environ.get("WATCH_SELF")
    if not record:
        return contextlib.nullcontext()
    import machtrace
    from machtrace.watching.jsonl import incident_object

    def state_incident(incident):
        arrived = now()
        state({"incident": incident_object(incident), "arrived": arrived})

    return machtrace.watch("self", hang=0.1, record=record, on_incident=state_incident)


def tasks_of(lines):
    for line in lines:
        number, action, ms, count = line.split()
        for _ in range(int(count)):
            yield int(number), action, int(ms)


class Input:
    """Lines of standard input, which does not block the loop."""

    def __init__(self):
        self.rest = b""

    def tasks(self):
        block = os.read(0, 65536)
        if not block:
            os._exit(0)
        *lines, self.rest = (self.rest + block).split(b"\n")
        return tasks_of(line.decode() for line in lines)


async def serve_asyncio(ticks):
    loop = asyncio.get_running_loop()
    source = Input()

    pending = collections.deque()

    def read():
        if not pending:
            loop.call_soon(execute_next)
        pending.extend(source.tasks())

    def execute_next():
        # One in each iteration of the loop.
        task = pending.popleft()
        if pending:
            loop.call_soon(execute_next)
        execute(task)

    def tick():
        loop.call_later(0.015, tick)

    with watched():
        loop.add_reader(0, read)
        if ticks:
            tick()
        state({"ready": now()})
        await asyncio.Event().wait()


def serve_queue():
    pending = queue.SimpleQueue()

    def read():
        source = Input()
        while True:
            for task in source.tasks():
                pending.put(task)

    threading.Thread(target=read, daemon=True, name="reader").start()
    while True:
        execute(pending.get())


def serve_selector(timeout):
    source = Input()
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        while True:
            if selector.select(timeout):
                for task in source.tasks():
                    execute(task)
                    selector.select(0)


def main():
    mode = sys.argv[1]
    state({"started": now()})
    if len(sys.argv) > 2:
        deadline = time.monotonic() + int(sys.argv[2]) / 1000
        while time.monotonic() < deadline:
            sum(range(1000))
    if mode in ("asyncio", "asyncio-ticks"):
        asyncio.run(serve_asyncio(mode == "asyncio-ticks"))
        return
    serve = {
        "queue": serve_queue,
        "selector": lambda: serve_selector(None),
        "selector-timeout": lambda: serve_selector(0.05),
    }[mode]
    with watched():
        state({"ready": now()})
        serve()


if __name__ == "__main__":
    main()
