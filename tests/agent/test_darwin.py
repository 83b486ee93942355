"""The agent's Darwin half in an emulated process: its calls, its true stacks, its bytes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest

import machtrace as mt
from machtrace.model.arch import Arch
from machtrace.reports.spool.incidents import SpoolIncident
from machtrace.reports.spool.spool import Spool
from machtrace.symbolizer.report_names import ReportNames
from machtrace.symbolizer.report_symbolicator import symbolicate_reports
from tests.agent import darwin_lab, spool_format
from tests.agent.darwin_lab import Lab, Run, build_lab
from tests.agent.readers import check_readers_agree

pytestmark = [pytest.mark.peer, pytest.mark.emulated]

RULES = ("sdk_read", "sdk_write", "kit_both", "sdk_never", "sdk_nowhere")
NESTED, MAIN = 8, 1
READ_ONLY, READ_WRITE = 1, 3


@pytest.fixture(
    scope="module",
    params=[(Arch.ARM64, False), (Arch.ARM64, True), (Arch.ARM64E, True), (Arch.X86_64, False)],
    ids=["arm64", "arm64-chained", "arm64e-chained", "x86_64"],
)
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """The images of one architecture, bound by opcodes or by chained fixups."""
    arch, is_chained = request.param
    return build_lab(tmp_path_factory.mktemp("lab") / "images", arch, is_chained=is_chained)


METHODS = {
    "-[Sensor read:]": (1, ""),
    "-[Sensor read:scaled:by:]": (1, ""),
    "-[Camera read:]": (1, ""),
    "-[Sensor inherited:]": (4, "-[Base inherited:]"),
    "+[Sensor shared:]": (4, "+[Base shared:]"),
    "-[Sensor same:]": (5, "-[Sensor other:]"),
    "-[Late read:]": (1, ""),
    "-[Sensor absent]": (2, ""),
    "-[Absent read:]": (2, ""),
    "-[Sensor": (2, ""),
}
"""Rules, their states, and the other methods that these name."""


def run(lab: Lab, tmp_path: Path, scenario: str, *, count: int = 1) -> Run:
    result = darwin_lab.run(lab, tmp_path / "app.spool", scenario, *RULES, count=count)
    assert result.darwin.notes["start"] == result.darwin.notes["stop"] == 0
    assert result.spool is not None
    assert not any(result.spool.losses.values())
    check_readers_agree(tmp_path / "app.spool")
    return result


def assert_seen(result: Run) -> None:
    """Every call was seen once, in its order, with its true stack."""
    true = [(call.symbol, call.stack) for call in result.process.calls]
    assert [(seen.symbol, seen.stack) for seen in result.seen] == true


def test_every_call_is_seen_once_with_its_true_stack(lab: Lab, tmp_path: Path) -> None:
    result = run(lab, tmp_path, "calls")
    assert len(result.process.calls) == 32
    assert_seen(result)
    assert {seen.event.flags & ~NESTED for seen in result.seen} == {MAIN}


def test_every_byte_and_right_is_restored(lab: Lab, tmp_path: Path) -> None:
    result = run(lab, tmp_path, "calls")
    assert result.changed["during"] > 20
    assert result.changed["after"] == 0
    rights = [protection for _, _, protection in result.darwin.protections]
    assert rights == [READ_WRITE, READ_ONLY] * (len(rights) // 2)
    assert len(rights) >= 4


def test_calls_by_a_watched_function_are_marked(lab: Lab, tmp_path: Path) -> None:
    result = run(lab, tmp_path, "calls")
    bounds = result.images["libkit.dylib"].range
    for seen in result.seen:
        is_nested = any(address in bounds for address in seen.stack)
        assert bool(seen.event.flags & NESTED) == is_nested == (seen.event.depth == 1)


def test_the_state_of_every_rule_is_known(lab: Lab, tmp_path: Path) -> None:
    result = run(lab, tmp_path, "calls")
    assert result.spool is not None
    rules = spool_format.rules(result.spool)
    assert {name: rule.state for name, rule in rules.items()} == {
        **dict.fromkeys(RULES[:3], 1),
        "sdk_never": 0,
        "sdk_nowhere": 2,
    }
    assert rules["sdk_read"].target == result.images["libsdk.dylib"].symbols["_sdk_read"]


def test_hooks_at_first_instructions_are_refused(lab: Lab, tmp_path: Path) -> None:
    result = darwin_lab.run(lab, tmp_path / "app.spool", "calls", *RULES, flags=2)
    assert result.spool is not None
    rules = spool_format.rules(result.spool).values()
    assert {(rule.state, rule.other) for rule in rules} == {
        (6, "the system allows no change of code")
    }
    assert not result.seen
    assert result.darwin.notes["stop"] == result.changed["after"] == 0


def test_arguments_and_results_pass_through_hooks(lab: Lab, tmp_path: Path) -> None:
    spool = tmp_path / "app.spool"
    result = darwin_lab.run(lab, spool, "arguments", "sdk_arguments")
    assert result.darwin.notes["wrong"] == 0
    assert_seen(result)
    assert len(result.seen) == 1


def test_stacks_are_whole_to_a_depth_of_10_000(lab: Lab, tmp_path: Path) -> None:
    result = run(lab, tmp_path, "deep", count=10_000)
    assert len(result.process.calls[0].stack) > 10_000
    assert_seen(result)


def test_images_that_are_loaded_later_are_watched_from_their_initialisers_on(
    lab: Lab, tmp_path: Path
) -> None:
    """Two images take the same addresses in turn, and their stacks differ."""
    result = run(lab, tmp_path, "plugins")
    assert len(result.process.calls) == 3 * 5
    assert_seen(result)
    assert result.spool is not None
    nodes = spool_format.Nodes(result.spool)
    of_images = Counter(
        nodes.images[number].path
        for seen in result.seen
        for number in [nodes.frames[seen.event.stack][0]]
    )
    plugin, other = (str(image.file) for image in lab.plugins)
    assert of_images == {plugin: 10, other: 5}


def test_a_spool_is_a_report_with_the_names_of_images(lab: Lab, tmp_path: Path) -> None:
    run(lab, tmp_path, "calls")
    folder = lab.program.file.parent
    reports = mt.read_reports(tmp_path / "app.spool")
    (report,) = symbolicate_reports(reports, ReportNames([str(folder)])).reports
    assert report.process.name == lab.program.file.name
    assert all(isinstance(image.uuid, UUID) for image in report.images)
    seen = []
    for tree in report.trees:
        outermost, function = tree.nodes[0].frame, tree.nodes[-1].frame
        assert outermost.symbol is not None
        assert outermost.symbol.name == "lab_start"
        assert function.image is not None
        seen.append((tree.name, report.images[function.image].path))
    sdk, kit = str(lab.sdk.file), str(lab.kit.file)
    assert seen == [("sdk_read", sdk), ("sdk_write", sdk), ("kit_both", kit)]


def test_no_call_of_any_thread_is_lost(lab: Lab, tmp_path: Path) -> None:
    """More threads than there are recorders begin and end."""
    result = run(lab, tmp_path, "threads", count=3)
    true = Counter((call.symbol, call.stack) for call in result.process.calls)
    assert Counter((seen.symbol, seen.stack) for seen in result.seen) == true
    assert true.total() == 12 * 3 * 9
    assert len({seen.thread for seen in result.seen}) == 12


@pytest.fixture(scope="module")
def messages(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that sends messages, some to a class that is loaded meanwhile."""
    spool = tmp_path_factory.mktemp("messages") / "app.spool"
    result = darwin_lab.run(lab, spool, "messages", *METHODS)
    assert result.darwin.notes["start"] == result.darwin.notes["stop"] == 0
    assert result.darwin.notes["opened"] == 1
    return result


def test_every_call_of_a_method_is_seen_once_with_its_true_stack(messages: Run) -> None:
    """Those of a class that was loaded later too; objc_msgSend is in no stack."""
    # Inherited methods are watched where they are implemented.
    owners = {rule: other or rule for rule, (_, other) in METHODS.items()}
    owners["-[Sensor same:]"] = "-[Sensor same:]"
    seen = [(owners[call.symbol], call.stack) for call in messages.seen]
    # The message other: leads to the same implementation, and is not watched.
    true = [(call.symbol, call.stack) for call in messages.process.calls]
    others = [call for call in true if call[0] == "-[Sensor same:]" and call not in seen]
    assert len(others) == 3
    assert [call for call in true if call not in others] == seen
    assert Counter(symbol for symbol, _ in seen) == {
        "-[Base inherited:]": 6,
        **dict.fromkeys(
            (
                *("-[Sensor read:]", "-[Sensor read:scaled:by:]", "-[Camera read:]"),
                *("+[Base shared:]", "-[Sensor same:]", "-[Late read:]"),
            ),
            3,
        ),
    }


def test_arguments_of_methods_pass_through_hooks(messages: Run) -> None:
    assert messages.darwin.notes["scaled"] == 55


def test_every_method_is_resolved_inherited_shared_or_absent(messages: Run) -> None:
    assert messages.spool is not None
    rules = spool_format.rules(messages.spool)
    assert {name: (rule.state, rule.other) for name, rule in rules.items()} == METHODS


def test_every_method_is_restored(messages: Run) -> None:
    assert messages.changed["during"] > messages.changed["after"] == 0


def test_without_the_images_files_slots_of_calls_are_bound(lab: Lab, tmp_path: Path) -> None:
    """By their indirect symbols; chained function pointers in data are missing then."""
    spool = tmp_path / "app.spool"
    result = darwin_lab.run(lab, spool, "calls", *RULES, has_files=False)
    true = iter([(call.symbol, call.stack) for call in result.process.calls])
    seen = [(call.symbol, call.stack) for call in result.seen]
    assert all(call in true for call in seen)  # in their order
    assert len(seen) == 32 - (9 if lab.is_chained else 0)
    assert result.darwin.notes["stop"] == result.changed["after"] == 0


def test_stacks_of_asynchronous_functions_are_their_continuations(lab: Lab, tmp_path: Path) -> None:
    """The thread that runs a task is in no stack of its functions."""
    result = darwin_lab.run(lab, tmp_path / "app.spool", "tasks", "sdk_read", "sdk_write")
    names = [
        (seen.symbol, [result.process.describe(one - 1).partition("+")[0] for one in seen.stack])
        for seen in result.seen
    ]
    assert names == 2 * [
        ("_sdk_read", ["_async_inner", "_async_middle", "_async_outer"]),
        ("_sdk_write", ["_async_helper", "_async_inner", "_async_middle", "_async_outer"]),
        ("_sdk_write", ["_async_helper", "_async_middle", "_async_outer"]),
        ("_sdk_read", ["_async_outer"]),
    ]
    assert {seen.event.flags for seen in result.seen} == {MAIN}


def test_a_hook_takes_the_documented_number_of_instructions(lab: Lab, tmp_path: Path) -> None:
    """On arm64; other versions of the compiler may differ a little."""
    if not lab.arch.is_arm64:
        pytest.skip("instructions of x86-64 are not counted")
    assert darwin_lab.instructions_of_a_hook(lab, tmp_path) < 1400


def test_the_stack_of_another_thread_is_its_true_one(lab: Lab, tmp_path: Path) -> None:
    """Nothing but the kernel is called while it is suspended, and no right is left."""
    result = run(lab, tmp_path, "another")
    assert len(result.taken) >= 7
    assert result.taken == result.true
    assert result.darwin.threads.task.most_suspended == 1
    assert result.darwin.notes["gone"] == 0
    result.darwin.threads.task.assert_released()


def check_hang(incident: SpoolIncident, result: Run, functions: list[str]) -> None:
    """A blocked thread: its stacks are true ones, and have these functions outside of a wait."""
    assert (incident.kind, incident.verdict, incident.is_certain) == ("hang", "blocked", True)
    assert incident.has_ended
    assert incident.limit == 100_000_000
    assert 440_000_000 < incident.value < 500_000_000
    assert 4 < len(incident.stacks) <= 20
    spool = Spool.read(result.path)
    symbols = {
        address: name for image in result.images.values() for name, address in image.symbols.items()
    }
    for stack in incident.stacks:
        frames = spool.stack(stack.stack)
        addresses = [
            frame.offset + (0 if frame.image is None else frame.image.start) for frame in frames
        ]
        addresses[0] -= 1  # no return address: the instruction that the thread was at
        assert tuple(addresses) in result.suspended
        names = [
            symbols[max(start for start in symbols if start < address)] for address in addresses
        ]
        assert [name for name in names if name in functions] == functions


def incidents(result: Run) -> list[SpoolIncident]:
    return list(Spool.read(result.path).incidents)


def test_a_run_loop_that_does_not_return_to_its_wait_is_a_hang(lab: Lab, tmp_path: Path) -> None:
    """Short tasks and waits are none; memory above its limit is an incident of its own."""
    result = run(lab, tmp_path, "run_loop")
    assert result.darwin.notes["observers"] == 2
    hang, memory = incidents(result)
    check_hang(hang, result, ["_lab_run_loop", "_lab_main"])
    assert (memory.kind, memory.value, memory.limit) == ("memory", 3 << 30, 1 << 30)
    assert memory.has_ended
    result.darwin.threads.task.assert_released()


def test_a_thread_that_states_its_tasks_is_watched(lab: Lab, tmp_path: Path) -> None:
    result = run(lab, tmp_path, "state_idle")
    assert result.darwin.notes["watch"] == 0
    (hang,) = incidents(result)
    check_hang(hang, result, [])
    result.darwin.threads.task.assert_released()


@pytest.mark.parametrize("share", [0.4, 0.8])
def test_processor_time_above_its_limit_is_an_incident(
    lab: Lab, tmp_path: Path, share: float
) -> None:
    path = tmp_path / "app.spool"
    result = darwin_lab.run(lab, path, "run_loop", processor_share=share)
    kinds = {incident.kind: incident for incident in incidents(result)}
    assert ("cpu" in kinds) == (share > 0.5)
    if "cpu" in kinds:
        assert kinds["cpu"].limit == 50
        assert 70 <= kinds["cpu"].value <= 90
