"""The lab in full: every program, optimisation and kind of unwind table, as one table.

Run it with ``.venv/bin/python tests/lab/run.py``; ``--help`` says how to run less of it. The
exit status is 1 where the best policy was wrong anywhere.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import capstone
from rich.console import Console
from rich.table import Table

from machtrace.macho.contents import FileContents
from machtrace.model.arch import Arch
from machtrace.testing.lab import Result, run
from machtrace.testing.lab_builds import (
    ARM64_ONLY,
    NAMES,
    OPTIMISATIONS,
    TABLES,
    build_program,
    unpreserved_registers,
)

PROGRAMS = Path(__file__).parent / "programs"


def disassembled(contents: FileContents, pc: int) -> str:
    """One instruction, as capstone spells it."""
    if contents.image.arch is Arch.X86_64:
        decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    else:
        decoder = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    code = bytes(contents.read_svma(pc, 4))
    text = next((f"{i.mnemonic} {i.op_str}" for i in decoder.disasm(code, pc)), code.hex())
    return f"{pc:#x}: {text}"


def failures(contents: FileContents, result: Result, policy: str, limit: int) -> list[str]:
    """Where a policy was wrong, worst first."""
    score = result.scores[policy]
    lines = []
    for pc, count in score.wrong.most_common(limit):
        found, truth = score.examples[pc]
        lines.append(
            f"  {disassembled(contents, pc)}  ({count}×)\n"
            f"    found {' '.join(map(hex, found))}\n    truth {' '.join(map(hex, truth))}"
        )
    for (pc, number), count in result.bad_registers.most_common(limit):
        lines.append(f"  {disassembled(contents, pc)}: register {number} wrong {count}×")
    return lines


def main() -> int:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", action="append", choices=NAMES)
    parser.add_argument("--optimisation", action="append", choices=tuple(OPTIMISATIONS))
    parser.add_argument("--tables", action="append", choices=tuple(TABLES))
    parser.add_argument("--arch", choices=("arm64", "x86_64"), default="arm64")
    parser.add_argument("--stripped", action="store_true", help="without symbols")
    parser.add_argument("--failures", type=int, default=5, help="shown of each run")
    arguments = parser.parse_args()
    arch = Arch(arguments.arch)
    console = Console(width=120)
    table = Table(title=f"Instructions with a wholly right stack, % ({arch.value})")
    columns = ("program", "built with", "tables", "instructions")
    for column in (*columns, "documents", "frame pointer", "compact", "everything", "registers"):
        table.add_column(column, justify="left" if column in columns[:3] else "right")
    notes: list[str] = []
    with TemporaryDirectory() as directory:
        for name in arguments.program or NAMES:
            for optimisation in arguments.optimisation or OPTIMISATIONS:
                if arch is Arch.X86_64 and optimisation in ARM64_ONLY:
                    continue
                for tables in arguments.tables or TABLES:
                    contents = build_program(
                        PROGRAMS,
                        name,
                        Path(directory) / name,
                        optimisation=optimisation,
                        tables=tables,
                        arch=arch,
                        link_options=("-s",) if arguments.stripped else (),
                    )
                    result = run(
                        contents, unpreserved=unpreserved_registers(name, optimisation, arch)
                    )
                    executed = result.scores["everything"].executed
                    wrong, lost = result.bad_registers.total(), result.lost_registers.total()
                    table.add_row(
                        name,
                        optimisation,
                        tables,
                        str(executed),
                        *(f"{score.percent:.2f}" for score in result.scores.values()),
                        f"{wrong} wrong, {lost} lost",
                    )
                    found = failures(contents, result, "everything", arguments.failures)
                    if found:
                        notes += [f"{name} {optimisation} {tables}", *found]
    console.print(table)
    for note in notes:
        console.print(note, highlight=False, soft_wrap=True)
    return 1 if notes else 0


if __name__ == "__main__":
    sys.exit(main())
