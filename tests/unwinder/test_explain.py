"""An explanation has the source of each frame, and the answers of all other methods."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import machtrace as mt
from machtrace.formats.macho.contents import MachOFileContents, MachOMemoryContents
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.capture import BrokenInformation, FollowedRule
from machtrace.model.memory import LayeredMemory, MemoryRegion
from machtrace.model.stack import AddressKind, FrameTrust, Stop, StopReason
from machtrace.pipeline.backtraces import build_capture
from machtrace.render import json_document, text
from machtrace.targets.emulator.target import PROGRAM
from machtrace.unwinder.sources.of_macho import call_frame_rules
from tests.support.writers.processes import synthetic_process

OBJDUMP = next((name for name in ("llvm-objdump-19", "llvm-objdump") if shutil.which(name)), None)


@pytest.fixture(scope="module")
def snapshot():
    """A snapshot of the emulated program's threads."""
    return mt.snapshot("emulated:demo")


@pytest.fixture(scope="module")
def walks(snapshot):
    """Its backtraces by the thread's name."""
    return {walk.thread.info.name: walk for walk in mt.unwind(snapshot)}


def machine_frames(walk):
    """Return the native frames of a backtrace, with their explanations."""
    explained = mt.explain(walk)
    pairs = list(zip(walk.addresses, explained.frames, strict=True))
    rest = walk.physical_remainder
    if rest is not None:
        pairs += zip(rest.addresses, explained.physical_remainder, strict=True)
    return [(frame, one) for frame, one in pairs if frame.kind is not AddressKind.ASYNC_RESUME]


@pytest.mark.emulated
def test_every_frames_explanation_leads_to_the_next(snapshot, walks):
    """Its rule gives the next frame's address."""
    for walk in walks.values():
        frames = machine_frames(walk)
        for (frame, explained), (caller, _) in pairwise(frames):
            assert explained.frame == frame
            followed = explained.chosen.outcome
            assert isinstance(followed, FollowedRule)
            assert followed.caller.address.address == caller.address
            assert explained.chosen.method is caller.trust
            if followed.return_address_at is not None:
                memory = LayeredMemory((walk.thread.stack, snapshot.memory))
                word = int.from_bytes(memory.read(followed.return_address_at, 8), "little")
                assert snapshot.process.pointer_mask.strip(word) == caller.address
        last = frames[-1][1].chosen.outcome
        assert isinstance(last, FollowedRule)
        assert Stop(StopReason.ROOT) == last.caller


@pytest.mark.emulated
def test_continuations_have_no_rule(walks):
    """The native frames below are explained."""
    walk = walks["com.machtrace.async"]
    explained = mt.explain(walk)
    kinds = [address.kind is AddressKind.ASYNC_RESUME for address in walk.addresses]
    assert kinds == [frame is None for frame in explained.frames]
    assert len(walk.physical_remainder.addresses) == len(explained.physical_remainder)


@pytest.mark.emulated
def test_frames_that_are_not_reached_again_are_not_explained(walks):
    """The files of the backtrace are gone, and the native frames are different."""
    walk = walks["com.machtrace.async"]
    rest = walk.physical_remainder
    moved = tuple(replace(address, address=Avma(address.address + 4)) for address in rest.addresses)
    deeper = replace(rest, addresses=(*rest.addresses, *moved))
    explained = mt.explain(replace(walk, physical_remainder=deeper)).physical_remainder
    assert [one is not None for one in explained] == [True] * len(moved) + [False] * len(moved)


@pytest.mark.emulated
def test_other_methods_answers_in_a_prologue(walks):
    """The frame pointer is still the caller's there, so that its method skips a frame."""
    walk = walks["com.machtrace.prologue"]
    first = mt.explain(walk).frames[0]
    others = {answer.method: answer for answer in first.others}
    _, second, third, *_ = (address.address for address in walk.addresses)

    assert FrameTrust.PROLOGUE is first.chosen.method
    assert first.chosen.claims
    assert "interrupted" in first.reason
    for method in (FrameTrust.COMPACT, FrameTrust.FRAME_POINTER):
        answer = others[method]
        assert third == answer.outcome.caller.address.address
        assert not answer.claims
        assert not first.agrees(answer)
    assert second == others[FrameTrust.LINK_REGISTER].outcome.caller.address.address
    assert others[FrameTrust.COMPACT].outcome.caller.symbol.name == "enter"


@pytest.mark.emulated
@pytest.mark.peer
def test_encodings_equal_those_of_llvm_objdump(walks):
    """``llvm-objdump --unwind-info`` prints them."""
    if OBJDUMP is None:
        pytest.skip("llvm-objdump is not installed")
    command = [OBJDUMP, "--unwind-info", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    origins = [
        answer.origin
        for walk in walks.values()
        for _, one in machine_frames(walk)
        for answer in (one.chosen, *one.others)
        if answer.method is FrameTrust.COMPACT and answer.outcome is not None
    ]
    assert origins
    for origin in origins:
        words = origin.split()
        assert words[1][2:].upper() in done.stdout.upper()


def test_malformed_tables_are_reported():
    """The method that failed has a reason, and the method that was used is explained."""
    process = synthetic_process(Arch.X86_64, threads=1, images=1, depth=4)
    program = process.regions[0]
    contents = MachOMemoryContents(process.snapshot.memory, program.start, "program")
    section = contents.image.section("__TEXT", "__unwind_info")
    assert section is not None
    at = section.address - process.images[0].header_svma
    table = bytearray(program.data[at : at + section.size])
    table[-4:] = (0x0F000000).to_bytes(4, "little")  # an invalid mode
    patch = MemoryRegion(Avma(program.start + at), bytes(table))
    broken = replace(process.snapshot, memory=LayeredMemory((patch, process.snapshot.memory)))
    (walk,) = mt.unwind(broken)
    explained = mt.explain(walk).frames[1]
    (compact,) = (answer for answer in explained.others if answer.method is FrameTrust.COMPACT)

    assert isinstance(compact.outcome, BrokenInformation)
    assert "mode" in compact.outcome.error
    assert walk.addresses[2].trust is explained.chosen.method is not FrameTrust.COMPACT


@pytest.mark.emulated
def test_tables_that_were_not_captured_are_reported_once(snapshot, tmp_path):
    """Once per method, and not as damage: the table is missing."""
    path = tmp_path / "bare.core"
    mt.save_snapshot(snapshot, path, images="none")
    bare = mt.snapshot(path)
    for walk in mt.unwind(bare):
        for frame in mt.explain(walk).frames:
            broken = [
                (answer.method, answer.outcome)
                for answer in (frame.others if frame else ())
                if isinstance(answer.outcome, BrokenInformation)
            ]
            assert len(broken) == len(set(broken))
    sink = io.StringIO()
    text.write(build_capture(bare, explain=True), sink)
    written = sink.getvalue()
    assert "call-frame information: cannot be used: cannot read" in written
    assert "malformed" not in written


def test_deep_stacks_are_explained_at_both_ends():
    """Only the retained frames."""
    process = synthetic_process(threads=1, depth=3000)
    (walk,) = mt.unwind(process.snapshot)
    explained = mt.explain(walk)
    callers = [
        entry.chosen.outcome.caller.address.address
        for entry in explained.frames
        if isinstance(entry.chosen.outcome.caller, type(explained.frames[0].chosen.outcome.caller))
    ]
    (true,) = process.stacks.values()

    assert [entry.address for entry in walk.addresses] == [
        entry.frame.address for entry in explained.frames
    ]
    assert [*true[1:449], *true[-63:]] == callers


@pytest.mark.emulated
def test_text_has_methods_rules_and_addresses(snapshot):
    """Below each frame; without the option it is not printed."""
    sink = io.StringIO()
    text.write(build_capture(snapshot, explain=True), sink)
    written = sink.getvalue()
    assert "→ instruction analysis: interrupted" in written
    assert "cfa = fp + 16, pc = *(cfa - 8), fp = *(cfa - 16)" in written
    assert "in __unwind_info" in written
    assert "which it does not claim here" in written

    sink = io.StringIO()
    text.write(build_capture(snapshot), sink)
    assert "→" not in sink.getvalue()


@pytest.mark.emulated
def test_json_has_the_same_as_data(snapshot):
    """Each native frame has its explanation; each answer the documented keys."""
    sink = io.StringIO()
    json_document.write(build_capture(snapshot, explain=True), sink)
    answers = 0
    for thread in json.loads(sink.getvalue())["threads"]:
        for frame in thread["frames"] + thread["physical_remainder"]:
            explanation = frame["explanation"]
            assert (explanation is None) == (frame["kind"] == "async-resume")
            if explanation is None:
                continue
            assert {"reason", "chosen", "others"} == set(explanation)
            for answer in (explanation["chosen"], *explanation["others"]):
                answers += 1
                assert {
                    *("method", "claims", "origin", "error", "rule", "cfa", "return_address_at"),
                    *("agrees", "caller", "stop"),
                } == set(answer)
            assert explanation["chosen"]["agrees"]
    assert answers > 100


@pytest.mark.peer
def test_call_frame_information_names_its_fde(lab_program, tmp_path):
    """The offset is the one that ``llvm-dwarfdump`` prints before the record."""
    dwarfdump = shutil.which("llvm-dwarfdump-19") or shutil.which("llvm-dwarfdump")
    if dwarfdump is None:
        pytest.skip("llvm-dwarfdump is not installed")

    contents = lab_program("frames", "-O2 no fp", "dwarf", Arch.ARM64)
    assert isinstance(contents, MachOFileContents)
    path = tmp_path / "program"
    path.write_bytes(contents.data)
    command = [dwarfdump, "--eh-frame", path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    records = [line for line in done.stdout.splitlines() if " FDE " in line]
    assert records
    rules = call_frame_rules(contents)
    assert rules is not None
    for line in records:
        offset, _, _, _, _, *_, bounds = line.split()
        start, end = (int(word, 16) for word in bounds.removeprefix("pc=").split("..."))
        origin = rules.origin(start)
        assert f"FDE at {int(offset, 16):#x} of __TEXT,__eh_frame, {start:#x} to {end:#x}" == origin


@given(
    arch=st.sampled_from([Arch.ARM64, Arch.X86_64]),
    changes=st.lists(st.tuples(st.integers(0, 0x3FFF), st.integers(0, 255)), max_size=40),
    stack=st.lists(st.tuples(st.integers(0, 0xFFF), st.integers(0, 255)), max_size=10),
)
@settings(max_examples=60, deadline=None)
def test_any_memory_has_an_explanation(arch, changes, stack):
    """For every retained frame, with any code, tables and stack."""
    process = synthetic_process(arch, threads=1, images=1, depth=5)
    program = bytearray(process.regions[0].data)
    for at, value in changes:
        program[0x1000 + at % (len(program) - 0x1000)] = value
    (thread,) = process.snapshot.threads
    data = bytearray(thread.stack.data)
    for at, value in stack:
        data[at % len(data)] = value
    changed = replace(
        process.snapshot,
        memory=MemoryRegion(process.regions[0].start, bytes(program)),
        threads=(replace(thread, stack=MemoryRegion(thread.stack.start, bytes(data))),),
    )
    (walk,) = mt.unwind(changed)
    explained = mt.explain(walk)
    assert len(walk.addresses) == len(explained.frames)
    assert all(frame is not None for frame in explained.frames)
