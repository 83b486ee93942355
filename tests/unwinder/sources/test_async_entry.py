"""Continuations at every instruction of async functions, without frame records."""

from __future__ import annotations

from pathlib import Path

import pytest

from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.tables.symtab import parse_symbols
from machtrace.model.arch import Arch
from machtrace.model.stack import AddressKind, StopReason
from machtrace.unwinder.sources.of_image import image_rules
from machtrace.unwinder.walker import walk
from tests.support.compilers.executables import COMPACT_TABLES, compile_macho
from tests.support.emulated.run import EmulatedRun
from tests.support.lab.policies import MASK, process_rules

pytestmark = [pytest.mark.emulated, pytest.mark.peer]

PROGRAM = Path(__file__).parent / "programs" / "continuations.c"
CONTEXT = {Arch.ARM64: 22, Arch.X86_64: 14}


def is_outlined_end(moment, name: str) -> bool:
    """Return whether a moment is in the end of an async function whose record still exists."""
    return name.startswith("_OUTLINED") and moment.registers.sp < moment.callers[0].sp


@pytest.mark.parametrize("optimisation", ["-O1", "-O2", "-Oz"])
@pytest.mark.parametrize("arch", CONTEXT)
def test_continuations_at_every_instruction(arch: Arch, optimisation: str, tmp_path: Path):
    """The chain begins with the context passed to the innermost async function."""
    output = tmp_path / "continuations"
    options = (optimisation, *COMPACT_TABLES, "-fswift-async-fp=always")
    compile_macho([PROGRAM], output, arch=arch, options=options)
    contents = MachOFileContents(output.read_bytes(), "continuations")
    symbols = parse_symbols(contents)
    starts = sorted(
        (int(symbols.n_value[row]), symbols.name(row)) for row in symbols.is_code.nonzero()[0]
    )

    def function(address: int) -> tuple[int, str]:
        return max(start for start in starts if start[0] <= address)

    rules = process_rules(contents, image_rules(contents, arch))
    seen: dict[str, set[int]] = {}
    wrong: list[str] = []

    def visit(moment) -> None:
        truth = [int(address) for address in moment.addresses]
        depth = next(
            (n for n, at in enumerate(truth[:-1]) if "async" in function(at - (n > 0))[1]), None
        )
        is_part = is_outlined_end(moment, function(truth[0])[1])
        depth = 0 if is_part else depth
        result = walk(moment.registers, moment.memory, rules, MASK)
        addresses = [int(frame.address) for frame in result.addresses]
        if depth is None:
            if addresses != truth:
                wrong.append(f"{truth[0]:#x}: {addresses} is not {truth}")
            return
        start, name = function(truth[depth] - (depth > 0))
        seen.setdefault("" if is_part else name, set()).add(truth[0])
        context = moment.callers[depth].registers.get(CONTEXT[arch])
        expected = truth[: depth + 1]
        while context:
            parent, resume = (
                int.from_bytes(moment.memory.read(context + at, 8), "little") for at in (0, 8)
            )
            if resume != start:
                expected.append(resume)
            context = parent
        if name == "_async_resumed" and truth[0] != start:
            return  # Swift's own would put its context in the record's place; C cannot
        if name == "_async_leaf" and arch is Arch.ARM64:
            return  # it makes no frame, so nothing in it shows that it is async
        if addresses != expected or result.stop.reason is not StopReason.ROOT:
            wrong.append(
                f"{name} {truth[0]:#x}: {list(map(hex, addresses))} not {list(map(hex, expected))}"
            )
            return
        assert all(
            frame.kind is AddressKind.ASYNC_RESUME for frame in result.addresses[depth + 1 :]
        )
        assert result.physical_remainder is not None
        rest = [int(frame.address) for frame in result.physical_remainder.addresses]
        assert rest == truth[depth + 1 :]

    EmulatedRun(contents).run(visit)
    assert not wrong, "\n".join(wrong[:20])
    seen.pop("", None)
    assert seen.keys() == {f"_async_{name}" for name in ("leaf", "working", "saving", "resumed")}
