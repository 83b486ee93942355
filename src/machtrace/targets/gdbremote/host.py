"""On what machine and system a stub's process runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

from machtrace.errors import TargetSpecError
from machtrace.formats.macho.header import arch_of
from machtrace.frozen import dataclass
from machtrace.model.address import PacMask
from machtrace.model.arch import Arch
from machtrace.targets.gdbremote.registers import RegisterTable
from machtrace.targets.gdbremote.replies import hex_text, parse_pairs

_U32 = (1 << 32) - 1
_ARCHITECTURES = {
    "x86_64": Arch.X86_64,
    "x86_64h": Arch.X86_64H,
    "i386:x86-64": Arch.X86_64,
    "i386": Arch.I386,
    "i486": Arch.I386,
    "i586": Arch.I386,
    "i686": Arch.I386,
    "aarch64": Arch.ARM64,
    "arm64": Arch.ARM64,
    "arm64e": Arch.ARM64E,
    "arm64_32": Arch.ARM64_32,
    "arm": Arch.ARM,
    "armv7": Arch.ARMV7,
    "armv7s": Arch.ARMV7S,
    "armv7k": Arch.ARMV7K,
}
_DARWIN = re.compile("apple|darwin|macosx|ios|tvos|watchos|xros")
_USUAL_WIDTH = {True: 47, False: 48}
"""Default bits of an arm64 address: Darwin's user half, and Linux's usual configuration."""


class RemoteSystem(Enum):
    """The format of the process's images and its loader."""

    DARWIN = "darwin"
    LINUX = "linux"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteHost:
    """A stub's facts about the machine of its process."""

    arch: Arch
    system: RemoteSystem
    pid: int | None
    pointer_mask: PacMask | None
    """None if it is unknown which bits of a pointer are address."""

    @property
    def usual_mask(self) -> PacMask:
        """The default pointer mask."""
        if not self.arch.is_arm64:
            return PacMask()
        return PacMask.of_width(_USUAL_WIDTH[self.system is RemoteSystem.DARWIN])


def host_of(
    process_info: bytes, host_info: bytes, table: RegisterTable | None, *, is_linux: bool
) -> RemoteHost:
    """Build the facts from the replies to ``qProcessInfo`` and ``qHostInfo``, and the registers.

    Args:
        process_info: empty where the stub does not know the request; and so the other.
        host_info: see there.
        table: the stub's registers.
        is_linux: whether it serves what only Linux has.

    Raises:
        TargetSpecError: it is a machine whose stacks are not walked here.
    """
    process, host = parse_pairs(process_info), parse_pairs(host_info)
    triple = hex_text(process.get("triple", "")) or hex_text(host.get("triple", ""))
    order = process.get("endian", host.get("endian", "little"))
    words = ("" if table is None else table.architecture, triple.partition("-")[0])
    arch = (
        _arch_of_cpu(process, base=16)
        or next((_ARCHITECTURES[word] for word in words[::-1] if word in _ARCHITECTURES), None)
        or _arch_of_cpu(host, base=10)
        or _arch_of_registers(table)
    )
    if arch is None or order not in ("little", ""):
        machine = triple or words[0] or process.get("cputype", host.get("cputype", "nothing"))
        raise TargetSpecError(
            f"unsupported process architecture: {machine}, {order}-endian",
            remedy="choose a process of x86_64, i386, arm64 or arm",
        )
    if arch is Arch.ARM64 and "-" in triple and triple.startswith("arm64e"):
        arch = Arch.ARM64E
    pid = process.get("pid", "")
    return RemoteHost(
        arch=arch,
        system=_system(triple, process, host, table, is_linux=is_linux),
        pid=int(pid, 16) if re.fullmatch("[0-9a-fA-F]{1,8}", pid) else None,
        pointer_mask=_mask(process, host) if arch.is_arm64 else PacMask(),
    )


def _arch_of_cpu(facts: Mapping[str, str], *, base: int) -> Arch | None:
    cpu = _number(facts.get("cputype", ""), base)
    subtype = _number(facts.get("cpusubtype", ""), base)
    return None if cpu is None else arch_of(cpu & _U32, (subtype or 0) & _U32)


def _arch_of_registers(table: RegisterTable | None) -> Arch | None:
    if table is None:
        return None
    names = {register.name for register in table.registers}
    for name, arch in (("rip", Arch.X86_64), ("eip", Arch.I386), ("x28", Arch.ARM64)):
        if name in names:
            return arch
    return Arch.ARM if {"r12", "lr"} <= names else None


def _system(
    triple: str,
    process: Mapping[str, str],
    host: Mapping[str, str],
    table: RegisterTable | None,
    *,
    is_linux: bool,
) -> RemoteSystem:
    description = " ".join(
        (triple, process.get("ostype", ""), host.get("ostype", ""), process.get("vendor", ""))
    ).lower()
    if _DARWIN.search(description):
        return RemoteSystem.DARWIN
    if "linux" in description or is_linux or (table is not None and table.system == "GNU/Linux"):
        return RemoteSystem.LINUX
    return RemoteSystem.UNKNOWN


def _mask(process: Mapping[str, str], host: Mapping[str, str]) -> PacMask | None:
    """Return the address bits: those of the low half of the address space, where programs are."""
    for facts in (process, host):
        for key in ("low_mem_addressing_bits", "addressing_bits"):
            width = _number(facts.get(key, ""), 10)
            if width and width <= 64:  # noqa: PLR2004 (bits)
                return PacMask.of_width(width)
    return None


def _number(text: str, base: int) -> int | None:
    try:
        return int(text, base) if text and len(text) <= 20 else None  # noqa: PLR2004 (digits)
    except ValueError:
        return None
