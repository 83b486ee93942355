"""The calling thread's own stack, and how long other threads of this process are stopped."""

import ctypes
import statistics
import threading
import time

import pytest

import machtrace as mt

_inprocess = pytest.importorskip("machtrace._native._inprocess")

DEPTH = 30


def at_depth(act):
    """Call ``act`` where the stack has 30 native frames or one more, through C."""

    def descend(levels):
        if levels:
            return next(map(lambda _: descend(levels - 1), [0]))  # noqa: C417 - C is meant
        if len(mt.call_stack_return_addresses()) < DEPTH:
            raise LookupError
        return act()

    results = []

    def run():
        for levels in range(DEPTH):
            try:
                results.append(descend(levels))
            except LookupError:
                continue
            return

    # A thread of its own, for pytest's own frames are many.
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


def glibc():
    """``backtrace`` and ``backtrace_symbols`` of glibc, through ctypes."""
    libc = ctypes.PyDLL(None)
    if not hasattr(libc, "backtrace_symbols"):
        pytest.skip("the C library has no backtrace")
    libc.backtrace_symbols.restype = ctypes.c_void_p
    libc.backtrace_symbols.argtypes = [ctypes.c_void_p, ctypes.c_int]
    libc.free.argtypes = [ctypes.c_void_p]
    buffer = (ctypes.c_void_p * 512)()

    def look():
        libc.free(libc.backtrace_symbols(buffer, libc.backtrace(buffer, 512)))

    return look


@pytest.mark.benchmark(group="the calling thread's stack, 30 frames, known before")
@pytest.mark.parametrize("way", ["symbols", "return addresses", "glibc"])
def test_own_stack(benchmark, way):
    """Names with a warm cache, addresses alone, and glibc's names."""
    look = {
        "glibc": glibc,
        "symbols": lambda: mt.call_stack_symbols,
        "return addresses": lambda: mt.call_stack_return_addresses,
    }[way]()
    at_depth(lambda: benchmark.pedantic(look, rounds=300, iterations=100, warmup_rounds=5))


@pytest.mark.benchmark(group="the calling thread's stack, alternately")
def test_times_glibc(benchmark):
    """Alternate both, so that other load affects both; extra_info has the ratio of glibc's time."""
    ways = {"symbols": mt.call_stack_symbols, "glibc": glibc()}
    took = {name: [] for name in ways}

    def both():
        for name, look in ways.items():
            look()
            start = time.perf_counter_ns()
            for _ in range(50):
                look()
            took[name].append((time.perf_counter_ns() - start) / 50_000)

    def measure():
        benchmark.pedantic(both, rounds=100, warmup_rounds=1)
        return len(mt.call_stack_symbols())

    benchmark.extra_info["frames"] = at_depth(measure)
    pairs = zip(took["glibc"], took["symbols"], strict=True)
    times = statistics.quantiles([glibc / ours for glibc, ours in pairs], n=20)
    benchmark.extra_info["times"] = {"5 %": times[0], "median": times[9], "95 %": times[18]}
    for name, column in took.items():
        benchmark.extra_info[f"{name}_us_median"] = statistics.median(column)


@pytest.mark.benchmark(group="all of 8 threads of this process")
@pytest.mark.parametrize("way", ["snapshot", "with Python functions"])
def test_threads(benchmark, way):
    """Capture a snapshot; extra_info has the stop time of each thread, in microseconds."""
    done = threading.Event()
    threads = [threading.Thread(target=done.wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    stops = []
    with mt.open_target("self") as target:
        take = target.snapshot if way == "snapshot" else lambda: target.snapshot_with_python()[0]

        def run():
            snapshot = take()
            stops.extend(thread.stopped_for_ns / 1000 for thread in snapshot.threads)

        benchmark(run)
    done.set()
    benchmark.extra_info["stopped_us_median"] = round(statistics.median(stops), 1)
    benchmark.extra_info["stopped_us_p99"] = round(statistics.quantiles(stops, n=100)[98], 1)
