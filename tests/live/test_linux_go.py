"""Stacks of Go programs, stripped and not: by Go's own table, to the end of each."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess

import pytest

import machtrace as mt
from machtrace.formats.go_images import elf_go_functions, macho_go_functions
from machtrace.formats.object_file import sniff
from machtrace.model.address import Svma
from machtrace.model.image import ImageFormat
from machtrace.model.stack import FrameTrust, StopReason
from machtrace.targets.linux.process import LinuxProcessTarget
from machtrace.unwinder.rules import Lost
from machtrace.unwinder.sources.go import GoFrameRules
from machtrace.unwinder.sources.of_elf import LazyAnalysis
from machtrace.unwinder.sources.of_macho import instruction_rules
from machtrace.unwinder.unwinder import unwind
from tests.live.conftest import PROGRAMS
from tests.support.command_line import run_command

ENDS = {"runtime.goexit", "runtime.mcall", "runtime.systemstack", "runtime.clone", "runtime.rt0_go"}
SAMPLED = 400
INJECTED = "debugCall"
"""Functions with breakpoint instructions, behind which the analysis expects no code."""


@pytest.fixture(scope="session")
def build_go(tmp_path_factory):
    """Compile the program of goroutines for a system and a processor."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("go is not installed; it compiles the program")
    folder = tmp_path_factory.mktemp("go")

    def run(*flags, system="linux", processor="amd64", source="goroutines.go"):
        names = (source, system, processor, *(flag.strip("-") for flag in flags[:1]))
        program = folder / "-".join(names)
        environment = os.environ | {
            "CGO_ENABLED": "0",
            "GOARCH": processor,
            "GOCACHE": str(folder / "cache"),
            "GOFLAGS": "-mod=mod",
            "GOOS": system,
            "GOPROXY": "off",
        }
        command = [go, "build", *flags, "-o", program, PROGRAMS / source]
        subprocess.run(command, env=environment, cwd=folder, capture_output=True, check=True)
        return program

    return run


native = pytest.mark.skipif(platform.machine() != "x86_64", reason="the program is for x86-64")


@native
@pytest.mark.parametrize("flags", [(), ("-ldflags=-s -w",)], ids=["whole", "stripped"])
def test_every_thread_ends_where_go_s_own_traceback_does(build_go, start, wait_until, flags):
    process = start(build_go(*flags))
    stacks, chains = (), []

    def spins():
        nonlocal stacks, chains
        stacks = mt.backtraces(process.pid, lines=False)
        chains = [
            [frame.symbol.name.removesuffix(".abi0") for frame in stack.frames] for stack in stacks
        ]
        return any("main.spin" in chain for chain in chains)

    wait_until(spins, "the goroutine that spins has a thread")
    assert {stack.stop.reason for stack in stacks} == {StopReason.ROOT}
    assert {chain[-1] for chain in chains} <= ENDS
    trusts = {frame.address.trust for stack in stacks for frame in stack.frames[1:]}
    assert trusts == {FrameTrust.PCSP}
    (running,) = (chain for chain in chains if "main.spin" in chain)
    at = running.index("main.spin")
    assert running[at:] == ["main.spin", *["main.descend"] * 6, "main.main.func2", "runtime.goexit"]


@native
@pytest.mark.parametrize("flags", [(), ("-ldflags=-s -w",)], ids=["whole", "stripped"])
def test_the_runtime_s_signal_handler_has_the_interrupted_stack(build_go, monkeypatch, flags):
    """Go's table marks it as outermost. It raises the signal again, with the default action."""
    monkeypatch.setenv("GOTRACEBACK", "crash")
    program = build_go(*flags, source="panics.go")
    done = run_command("backtrace", "--on-crash", "--format", "json", "--", program, timeout=200)
    (crashed,) = [thread for thread in json.loads(done.stdout)["threads"] if thread["crashed"]]
    names = [(frame["symbol"] or "").removesuffix(".abi0") for frame in crashed["frames"]]
    at = names.index("runtime.sigtramp")
    assert names[at + 1 : at + 4] == ["runtime.sigreturn", "runtime.raise", "runtime.dieFromSignal"]
    assert names[-1] in ENDS
    assert crashed["stop"]["reason"] == "root"


@native
def test_frames_are_those_of_gdb(build_go, start, gdb):
    """It reads the same sizes from debugging information, and continues on other stacks."""
    process = start(build_go())
    with LinuxProcessTarget(process.pid) as target:
        walks = unwind(target.snapshot())
    theirs = {thread["id"]: thread["addresses"] for thread in gdb(process.pid)["threads"]}
    compared = 0
    for walked in walks:
        ours = [frame.address for frame in walked.addresses]
        expected = theirs[walked.thread.info.id]
        if ours[0] == expected[0]:  # it waits
            assert expected[: len(ours)] == ours
            compared += 1
    assert compared


@pytest.mark.parametrize("system", ["linux", "darwin"])
@pytest.mark.parametrize("processor", ["amd64", "arm64"])
def test_the_table_agrees_with_the_code(build_go, system, processor):
    """At instructions of whole programs: the same canonical frame address."""
    program = build_go(system=system, processor=processor)
    (only,) = sniff(program.read_bytes(), program.name)
    contents = only.open()
    arch = contents.image.header.arch
    if only.format is ImageFormat.ELF:
        rules, analysis = GoFrameRules.of_elf(contents, arch), LazyAnalysis(contents, arch)
        functions = elf_go_functions(contents)
    else:
        rules, analysis = GoFrameRules.of_macho(contents, arch), instruction_rules(contents, arch)
        functions = macho_go_functions(contents, lambda: None)
    compared = 0
    for row in range(0, len(functions), len(functions) // SAMPLED):
        start, end = int(functions.starts[row]), int(functions.ends[row])
        addresses = instructions(contents, start, end, arch)
        at = addresses[row % len(addresses)]
        bounds = analysis.function_at(at)
        if bounds is None or bounds[0] != start or functions.name(row).startswith(INJECTED):
            continue
        ours, code = (one.rule_for(at, interrupted=True) for one in (rules, analysis))
        is_claimed = ours is not None and not isinstance(ours.return_address, Lost)
        if is_claimed and code is not None:
            assert ours.cfa == code.cfa, (functions.name(row), hex(at))
            compared += 1
    assert compared > SAMPLED // 4


def instructions(contents, start, end, arch):
    """Return the addresses of a function's instructions."""
    if arch.is_arm64:
        return [Svma(at) for at in range(start, end, 4)]
    from machtrace.unwinder.arch.x86.analysis import MODES
    from machtrace.unwinder.arch.x86.decoder import Decoder

    decoder, code, at = Decoder(MODES[arch]), bytes(contents.read_svma(Svma(start), end - start)), 0
    addresses = []
    while at < len(code):
        addresses.append(Svma(start + at))
        at += decoder.decode(code, at)[0]
    return addresses
