"""The agent in programs: every call once with its true stack, and every byte restored."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent import spool_format
from tests.agent.build import (
    HOOK_PATH,
    LINKED,
    PROGRAMS,
    PROJECT,
    build,
    compiler,
    library,
    numbers,
    run,
)
from tests.agent.spool_format import Nodes, Spool

pytestmark = pytest.mark.live

NESTED, INTERRUPT, OTHER_STACK, TRUNCATED = 8, 16, 32, 2


def shared(folder: Path, name: str) -> Path:
    output = folder / f"lib{name}.so"
    if not output.exists():
        options = ["-O2", "-g", "-fno-omit-frame-pointer", "-fPIC", "-shared"]
        source = str(PROGRAMS / f"{name}.c")
        subprocess.run([compiler(), *options, source, "-o", str(output)], check=True)
    return output


def linked(folder: Path, program: str, how: str, *flags: str) -> Path:
    """Return a program with the agent in it, or beside it: then the flags are the program's."""
    link = [str(shared(folder, "observed")), f"-Wl,-rpath,{folder}", "-rdynamic"]
    link.append("-Wl,-z,lazy" if how == "lazy" else "-Wl,-z,now")
    if how == "static":
        return build(folder, program, LINKED, *flags, link=link)
    return build(folder, program, (), *flags, link=[str(library(folder)), *link])


Scenario = Callable[..., dict[str, float]]


@pytest.fixture(params=["library", "lazy", "static"])
def scenario(request: pytest.FixtureRequest, built: Path, tmp_path: Path) -> Scenario:
    program = linked(built, "scenarios.c", request.param)

    def play(name: str, argument: object = "") -> dict[str, float]:
        return numbers(run(program, tmp_path / "app.spool", name, argument, timeout=100))

    return play


def stacks(spool: Spool) -> Counter[tuple[int, ...]]:
    """Return calls by stack, innermost first."""
    nodes, result = Nodes(spool), Counter[tuple[int, ...]]()
    for (_, node), calls in spool.sums().items():
        result[tuple(nodes.stack(node))] += calls
    return result


def test_every_byte_is_restored(scenario: Scenario) -> None:
    result = scenario("restore")
    for number in range(3):
        assert result[f"during{number}"] >= 14
        assert result[f"after{number}"] == 0
        assert result[f"stop{number}"] == 0
        assert result[f"rights{number}"] == 1
        assert result[f"rights-during{number}"] == 1


def test_arguments_results_and_errno_pass_through_hooks(scenario: Scenario) -> None:
    assert scenario("arguments") == {"wrong": 0, "seen": 2000}


@pytest.mark.parametrize("depth", [1, 2, 100, 10_000])
def test_stacks_are_whole_at_the_first_instruction(
    scenario: Scenario, tmp_path: Path, depth: int
) -> None:
    scenario("deep", depth)
    spool = spool_format.read(tmp_path / "app.spool")
    ((stack, calls),) = stacks(spool).items()
    assert calls == 1
    # The call of `observed`, the recursive calls, run_deep and the C library's start of threads.
    assert len(stack) == depth + 2
    assert len(set(stack[1:-2])) == (depth > 1)
    nodes = Nodes(spool)
    assert depth < 100 or nodes.sent / len(nodes.parents) <= 6


@pytest.mark.parametrize("depth", [100, 16_383, 16_384, 16_385, 50_000])
def test_stacks_with_equal_inner_frames_and_other_origins_are_others(
    scenario: Scenario, tmp_path: Path, depth: int
) -> None:
    result = scenario("origins", depth)
    # Recursion, its origin, the thread's function, and the C library's start of threads.
    assert result["here"] == depth + 3
    assert result["differ"] == 1
    spool = spool_format.read(tmp_path / "app.spool")
    first, second = stacks(spool).items()
    assert (first[1], second[1]) == (3, 3)
    assert len(first[0]) == len(second[0]) == depth + 3
    differing = [index for index in range(depth + 3) if first[0][index] != second[0][index]]
    # The call in the origin, and that of the origin.
    assert differing == [depth, depth + 1]
    assert spool.losses["stacks_cut"] == 0


@pytest.mark.parametrize("depth", [100, 16_383, 16_384, 50_000])
def test_deep_stacks_that_are_not_the_thread_s_own_are_whole(
    scenario: Scenario, tmp_path: Path, depth: int
) -> None:
    result = scenario("origins_elsewhere", depth)
    assert result["here"] > depth + 3
    assert result["differ"] == 1
    spool = spool_format.read(tmp_path / "app.spool")
    first, second = stacks(spool)
    assert len(first) == len(second) == result["here"]
    differing = [index for index, frame in enumerate(first) if frame != second[index]]
    assert differing == [depth, depth + 1]
    assert spool.losses["stacks_cut"] == 0


def test_frames_of_the_system_are_removed(scenario: Scenario) -> None:
    result = scenario("app_only")
    # The comparison and main; the C library has no frame pointers, which may hide its caller.
    assert 2 <= result["app"] < result["all"]
    assert result["foreign"] == result["none"] == 0


def test_stacks_that_are_cut_are_marked(scenario: Scenario, tmp_path: Path) -> None:
    scenario("deep", 64 * 16384 + 100)
    spool = spool_format.read(tmp_path / "app.spool")
    (event,) = spool.events
    assert event.flags & TRUNCATED
    assert spool.losses["stacks_cut"] == 1
    stack = Nodes(spool).stack(event.stack)
    assert len(stack) == 16384 + 1
    assert stack[-1] == 1


def test_calls_by_a_watched_function_are_marked(scenario: Scenario, tmp_path: Path) -> None:
    scenario("nested")
    spool = spool_format.read(tmp_path / "app.spool")
    numbers_of = {rule.symbol: rule.number for rule in spool_format.rules(spool).values()}
    seen = [(event.rule, event.depth, event.flags & NESTED) for event in spool.events]
    outer, inner = numbers_of["observed_twice"], numbers_of["observed"]
    assert seen == [(outer, 0, 0), (inner, 1, NESTED), (inner, 0, 0)]


def test_calls_on_other_stacks_are_recorded(scenario: Scenario, tmp_path: Path) -> None:
    assert scenario("other_stacks")["seen"] == 3
    spool = spool_format.read(tmp_path / "app.spool")
    nodes = Nodes(spool)
    depths = []
    for event in spool.events:
        stack = nodes.stack(event.stack)
        assert len(set(stack[1 : len(stack) - 1])) < len(stack) - 1
        depths.append((event.flags & OTHER_STACK, sum(frame == stack[1] for frame in stack)))
    assert depths == [(OTHER_STACK, 3), (OTHER_STACK, 4), (0, 5)]


def test_hooks_that_are_left_by_a_jump_do_not_end_recording(scenario: Scenario) -> None:
    result = scenario("jumping")
    assert result["quiet"] == 1000
    assert result["counted"] == 0


def test_children_do_not_write_their_parent_s_spool(scenario: Scenario, tmp_path: Path) -> None:
    assert scenario("children") == {"child": 7, "clone": 7, "seen": 15, "stop": 0}
    spool = spool_format.read(tmp_path / "app.spool")
    assert sum(spool.sums().values()) == 15
    child = spool_format.read(tmp_path / "app.spool.child")
    assert sum(child.sums().values()) == 7
    assert child.pid != spool.pid
    assert spool_format.rules(child)["observed"].state == 1


def test_two_agents_in_one_process_both_record(built: Path, tmp_path: Path) -> None:
    copy = built / "copy_of_the_agent.so"
    shutil.copy(library(built), copy)
    program = linked(built, "scenarios.c", "library")
    result = numbers(run(program, tmp_path / "app.spool", "two_agents", copy))
    assert result == {
        "distinct": 1,
        "same": errno.EBUSY,
        "other": 0,
        "again": errno.EALREADY,
        "first": errno.EBUSY,
        "second": 0,
    }
    assert sum(spool_format.read(tmp_path / "app.spool").sums().values()) == 10
    assert sum(spool_format.read(tmp_path / "app.spool.other").sums().values()) == 110


def test_images_that_are_loaded_later_are_watched(
    scenario: Scenario, built: Path, tmp_path: Path
) -> None:
    plugin = shared(built, "plugin")
    assert scenario("plugins", plugin) == {"found": 30, "seen": 30, "stop": 0}
    spool = spool_format.read(tmp_path / "app.spool")
    nodes = Nodes(spool)
    assert sum(calls for calls in spool.sums().values()) == 30
    for _, node in spool.sums():
        image, _ = nodes.frames[node]
        assert nodes.images[image].path == str(plugin)


@pytest.mark.parametrize("how", ["library", "static"])
def test_images_that_come_and_go_at_one_address_are_watched_each_time(
    built: Path, tmp_path: Path, how: str
) -> None:
    rounds, path = 3000, tmp_path / "app.spool"
    plugins = [built / f"{name}_plugin.so" for name in ("first", "second")]
    for plugin in plugins:
        options = ["-O2", "-fno-omit-frame-pointer", "-fPIC", "-shared"]
        source = str(PROGRAMS / "plugin.c")
        subprocess.run([compiler(), *options, source, "-o", str(plugin)], check=True)
    result = numbers(run(linked(built, "churn.c", how), path, *plugins, rounds))
    each = {"first": rounds, "second": rounds, "counted": 2 * rounds}
    assert result == {**each, "errors": 0, "start": 0, "stop": 0}
    spool = spool_format.read(path)
    nodes, calls = Nodes(spool), Counter[str]()
    for (_, node), count in spool.sums().items():
        image, _ = nodes.frames[node]
        calls[nodes.images[image].path] += count
    assert calls == {str(plugin): rounds for plugin in plugins}


def test_starts_and_stops_while_images_come_and_go(scenario: Scenario, built: Path) -> None:
    result = scenario("cycles", shared(built, "plugin"))
    assert result == {"wrong": 0, "errors": 0, "called": 1, "left": 0}


def test_names_without_a_slash_are_searched_for_the_caller(built: Path, tmp_path: Path) -> None:
    plugin = shared(built, "plugin")
    program = linked(built, "scenarios.c", "library")
    result = numbers(run(program, tmp_path / "app.spool", "plugins", plugin.name))
    assert result["found"] == 30  # by the program's own search path
    assert result["stop"] == 0


def test_invalid_input_is_refused(scenario: Scenario) -> None:
    assert scenario("invalid") == {
        "null": errno.EINVAL,
        "size": errno.EINVAL,
        "path": errno.EINVAL,
        "long": errno.EINVAL,
        "empty": errno.EINVAL,
        "stop": errno.ESRCH,
        "watch": errno.ESRCH,
        "again": errno.EALREADY,
        "watch-null": errno.EINVAL,
        "state": -1,
        "thread": 0,
    }


def test_stacks_of_this_thread_and_of_others(scenario: Scenario) -> None:
    result = scenario("stacks")
    assert result["again"] == result["shallow"] == result["little"] == result["deep"] - 1
    assert result["equal"] == result["differ"] == 1
    assert result["recursions"] == 10
    assert result["other"] >= 22
    assert result["repeats"] == 18  # of 20 recursive calls but the outermost and the innermost


def test_stacks_as_call_stack_symbols_has_them(built: Path, tmp_path: Path) -> None:
    program = linked(built, "scenarios.c", "library")
    first, *lines = run(program, tmp_path / "app.spool", "symbols").splitlines()
    assert numbers(first) == {"lengths": 1, "truncated": 9}
    assert lines[0].startswith(f"{0:<4}{program.name:<35} 0x0000")
    assert [line.split()[3] for line in lines[:2]] == ["exported_caller", "main"]
    assert all(line.split()[4] == "+" and int(line.split()[5]) for line in lines[:2])


@pytest.mark.parametrize("how", ["library", "static"])
def test_no_call_of_any_thread_is_lost(built: Path, tmp_path: Path, how: str) -> None:
    threads, calls, depths = 16, 60_000, 100
    program = linked(built, "calls.c", how)
    result = numbers(run(program, tmp_path / "app.spool", threads, calls, depths))
    assert result["first"] == threads * 20_000
    assert result["second"] == threads * 40_000
    assert result["seen"] == threads * calls
    assert (result["state"], result["absent"], result["stop"]) == (1, 2, 0)
    expected: Counter[tuple[bool, int]] = Counter()
    for number in range(calls):
        expected[number % 3 == 0, 1 + number % depths] += threads
    spool = spool_format.read(tmp_path / "app.spool")
    assert spool.incomplete == []
    assert spool.state == 2
    actual = stacks(spool)
    assert len({stack[0] for stack in actual}) == 2
    by_site: Counter[int] = Counter()
    for stack, count in actual.items():
        by_site[stack[0]] += count
    first_site = min(by_site, key=by_site.__getitem__)
    fixed = min(map(len, actual)) - 1
    by_depth: Counter[tuple[bool, int]] = Counter()
    for stack, count in actual.items():
        by_depth[stack[0] == first_site, len(stack) - fixed] += count
    assert by_depth == expected
    assert spool.calls[:2] == [threads * calls, 0]


def own_calls(spool: Spool, program: Path) -> Counter[str]:
    """Return calls by function whose innermost frame is in the program itself."""
    nodes, result = Nodes(spool), Counter[str]()
    symbols = {rule.number: rule.symbol for rule in spool_format.rules(spool).values()}
    for (rule, node), calls in spool.sums().items():
        image, _ = nodes.frames[node]
        if image and nodes.images[image].path == str(program):
            result[symbols[rule]] += calls
    return result


def torture(
    program: Path,
    built: Path,
    tmp_path: Path,
    threads: int,
    seconds: int,
    *,
    defers_signals: bool = False,
) -> None:
    path = tmp_path / "app.spool"
    # The loader is not instrumented: ThreadSanitizer does not see its locks.
    environment = {**os.environ, "TSAN_OPTIONS": "ignore_noninstrumented_modules=1"}
    plugin = shared(built, "plugin")
    result = numbers(run(program, path, plugin, threads, seconds, timeout=900, env=environment))
    assert result.pop("errors") == 0
    spool = spool_format.read(path)
    assert spool.incomplete == []
    assert spool.losses["without_stack"] == 0
    # ThreadSanitizer calls handlers of signals where the program next enters its runtime, which may
    # be in the agent.
    deferred = spool.losses["ignored"] if defers_signals else 0
    own = own_calls(spool, program)
    assert own.keys() == result.keys()
    assert all(0 <= result[name] - own[name] <= deferred for name in result)
    totals: Counter[int] = Counter()
    for (rule, _), calls in spool.sums().items():
        totals[rule] += calls
    assert totals == {rule: calls for rule, calls in enumerate(spool.calls) if calls}


@pytest.mark.parametrize("how", ["library", "static"])
def test_torture_loses_no_call(built: Path, tmp_path: Path, how: str) -> None:
    seconds = int(os.environ.get("MACHTRACE_TORTURE_SECONDS", "5"))
    torture(linked(built, "torture.c", how), built, tmp_path, 16, seconds)


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_programs_that_a_sanitizer_checks_are_recorded(
    built: Path, tmp_path: Path, sanitizer: str
) -> None:
    program = linked(built, "torture.c", "library", f"-fsanitize={sanitizer}")
    torture(program, built, tmp_path, 4, 2, defers_signals=sanitizer == "thread")


@pytest.mark.parametrize("sanitizer", ["undefined", "address", "thread"])
def test_no_sanitizer_reports_the_agent(built: Path, tmp_path: Path, sanitizer: str) -> None:
    # The watchdog has fences, which ThreadSanitizer does not follow: none runs here.
    flags = ["-Wno-tsan"] if sanitizer == "thread" else []
    program = linked(built, "calls.c", "static", f"-fsanitize={sanitizer}", *flags)
    result = numbers(run(program, tmp_path / "app.spool", 8, 5_000, 12))
    assert result["seen"] == 40_000


def test_the_spool_of_a_killed_process_has_what_was_flushed(built: Path, tmp_path: Path) -> None:
    program = linked(built, "scenarios.c", "library")
    command = [str(program), str(tmp_path / "app.spool"), "killed"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready 1\n"
        process.send_signal(signal.SIGKILL)
    spool = spool_format.read(tmp_path / "app.spool")
    assert spool.incomplete == []
    assert spool.state == 1
    assert sum(spool.sums().values()) >= 1234


def test_preloaded_by_the_environment(built: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library(built)),
        "MACHTRACE_WATCH": "malloc,opendir, not_there",
        "MACHTRACE_COUNT": "free",
        "MACHTRACE_SPOOL": str(tmp_path / "ls-%p.spool"),
    }
    done = subprocess.run(
        ["ls", str(PROGRAMS)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    (path,) = tmp_path.glob("ls-*.spool")
    spool = spool_format.read(path)
    assert f"ls-{spool.pid}.spool" == path.name
    rules = spool_format.rules(spool)
    assert [rules[name].state for name in ("malloc", "opendir", "free", "not_there")] == [
        *(1, 1, 1, 2)
    ]
    assert rules["free"].counts_only
    assert spool.calls[rules["malloc"].number] > 10
    assert spool.calls[rules["opendir"].number] == 1
    assert spool.calls[rules["free"].number] > 10


def test_a_spool_that_cannot_be_written_does_not_stop_the_program(
    built: Path, tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library(built)),
        "MACHTRACE_WATCH": "malloc",
        "MACHTRACE_SPOOL": str(tmp_path / "missing" / "app.spool"),
    }
    done = subprocess.run(
        ["ls", str(PROGRAMS)], env=environment, capture_output=True, text=True, check=True
    )
    assert "calls.c" in done.stdout
    assert done.stderr.startswith("machtrace: ")
    assert "No such file or directory" in done.stderr


def test_hooks_call_nothing_that_allocates_locks_or_uses_vector_registers(
    built: Path,
) -> None:
    """Undefined symbols of what hooks run are its own, and of the start alone."""
    own = ("machtrace_",)
    start = {"mmap", "munmap", "getauxval", "__errno_location", "_GLOBAL_OFFSET_TABLE_"}
    for source in (each for each in HOOK_PATH if "darwin" not in each):
        output = built / (Path(source).stem + ".hook.o")
        options = ["-O2", "-std=c11", "-mgeneral-regs-only", "-fvisibility=hidden", "-fPIC"]
        include = [f"-I{PROJECT / 'agent'}", f"-I{PROJECT / 'native'}"]
        command = [compiler(), *options, *include, "-c", str(PROJECT / source)]
        subprocess.run([*command, "-o", str(output)], check=True)
        listing = subprocess.run(
            ["nm", "-u", str(output)], check=True, capture_output=True, text=True
        ).stdout
        for line in listing.splitlines():
            symbol = line.split()[-1]
            assert symbol.startswith(own) or symbol in start or "aarch64" in symbol, symbol
