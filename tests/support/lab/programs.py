"""The lab's programs, as data. ``tests/lab/README.md`` describes how to add one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.arch import Arch
from tests.support.emulated.dyld import bound_lazily

Patches = Callable[[MachOFileContents], Mapping[int, bytes]]
"""Bytes that dyld would write over a program before it starts, by Svma."""


def _no_patches(_: MachOFileContents) -> Mapping[int, bytes]:
    return {}


@dataclass(frozen=True, slots=True)
class Program:
    """One program of the lab."""

    name: str
    sources: tuple[str | Path, ...]
    """Relative to the directory of programs, or absolute."""
    shapes: str
    """Its purpose, in a few words."""
    options: tuple[str, ...] = ()
    """For the compiler, beside those of a build."""
    link_options: tuple[str, ...] = ()
    patches: Patches = _no_patches
    unpreserved: Mapping[Arch, frozenset[int]] = field(default_factory=dict)
    """Registers, by DWARF number, that its calls need not preserve, though most calls do."""
    between_stacks: frozenset[str] = frozenset()
    """Symbols of functions that leave one stack for another: in them, either is right."""
    has_signals: bool = False
    """A signal is delivered wherever it comes to; see :mod:`tests.support.emulated.signals`."""
    every: int = 1
    """Instructions between two that are compared."""
    each_place: bool = False
    """Whether each instruction is also compared the first time it is reached."""
    limit: int = 400_000
    """Instructions that it runs at most."""
    further_optimisations: tuple[str, ...] = ()
    """For it alone, beside its architecture's."""
    optimisations: tuple[str, ...] | None = None
    """A subset of its architecture's; None for all of them."""
    tables: tuple[str, ...] = ("compact", "dwarf")
    architectures: frozenset[str] | None = None
    """By name; None for all."""


_SUPPORT = ("support.c", "support.S")
_WIDE = frozenset({"arm64", "arm64e", "x86_64"})
_WITH_I386 = _WIDE | {"i386"}
_ARM = frozenset({"armv7", "armv7-arm", "armv7k", "armv7k-arm"})

PROGRAMS = {
    program.name: program
    for program in (
        Program(
            "leaves",
            ("leaves.c", *_SUPPORT),
            "leaves, late frames, several epilogues, tail calls, recursion, a call as last word",
        ),
        Program(
            "frames",
            ("frames.c", "probes.S", *_SUPPORT),
            "frames of all sizes, stack probes, alloca, varargs, sret",
            further_optimisations=("-O2 probes", "-O2 probes no fp"),
        ),
        Program(
            "registers",
            ("registers.c", *_SUPPORT),
            "ten saved registers, saved vector registers, callbacks",
        ),
        Program(
            "pushes",
            ("pushes.c", *_SUPPORT),
            "assembly inside of functions that pushes and calls",
            architectures=frozenset({"arm64", "x86_64"}),
        ),
        Program("switches", ("switches.c", *_SUPPORT), "switch tables, computed goto"),
        Program("alike", ("alike.c", *_SUPPORT), "code that -Oz cuts out of functions"),
        Program(
            "async",
            ("async.c", *_SUPPORT),
            "Swift's async frames",
            options=("-fswift-async-fp=always",),
            # Swift's self and async context: arguments of its functions.
            unpreserved={
                Arch.ARM64: frozenset({20, 22}),
                Arch.ARM64E: frozenset({20, 22}),
                Arch.X86_64: frozenset({13, 14}),
            },
            architectures=_WIDE,
        ),
        Program(
            "jumps",
            ("jumps.c", "jumps.S", *_SUPPORT),
            "setjmp and longjmp",
            between_stacks=frozenset({"_long_jump"}),
            architectures=_WITH_I386 | _ARM,
        ),
        Program(
            "fibers",
            ("fibers.c", "fibers.S", *_SUPPORT),
            "stacks switched by hand",
            between_stacks=frozenset({"_switch_stack"}),
            architectures=_WITH_I386 | _ARM,
        ),
        Program(
            "signals",
            ("signals.c", "signals.S", *_SUPPORT),
            "signals at every instruction, some on a stack of their own",
            has_signals=True,
            every=5,
            optimisations=("-O0", "-O2", "-Oz", "-O2 no fp"),
            architectures=_WITH_I386,
        ),
        Program(
            "stubs",
            ("stubs.c", "stubs.S", *_SUPPORT),
            "stubs, bound at the first call through stub helpers and dyld_stub_binder",
            link_options=("-Wl,-undefined,dynamic_lookup",),
            patches=bound_lazily,
            architectures=_WITH_I386,
        ),
        Program(
            "conventions",
            ("conventions.c", *_SUPPORT),
            "callees that pop: structures returned, stdcall and fastcall, through pointers too",
            architectures=frozenset({"i386"}),
        ),
        Program(
            "encodings",
            ("encodings.S",),
            "each way to save, to align, to return on a condition, to jump by a table",
            optimisations=("-O0",),
            tables=("compact",),
            architectures=_ARM,
        ),
        Program(
            "virtual",
            ("virtual.cc", *_SUPPORT),
            "C++: virtual calls, thunks, constructors, lambdas",
            architectures=frozenset({"arm64", "x86_64", "i386"}) | _ARM,
        ),
    )
}
"""By name, in the table's order."""
