"""The facts of a process that macOS gives everybody, and whether it can be captured."""

from __future__ import annotations

from machtrace.errors import TargetGoneError, TargetSpecError
from machtrace.formats.macho.header import CPU_TYPE_ARM64, CPU_TYPE_X86_64, arch_of
from machtrace.frozen import dataclass
from machtrace.model.address import PacMask
from machtrace.model.arch import Arch
from machtrace.model.snapshot import ProcessInfo
from machtrace.targets.darwin.extension import TaskExtension

# sys/proc_info.h, the last of xnu's sys/proc_info_private.h
_PROC_FLAG_SYSTEM = 0x1
_PROC_FLAG_LP64 = 0x10
_PROC_FLAG_PSUGID = 0x2000
_PROC_FLAG_ROSETTA = 0x2000000
_ZOMBIE = 5  # SZOMB of sys/proc.h

_USUAL_ADDRESS_BITS = 47
"""Bits of a pointer of a process of macOS, above which are signatures and tags."""
_MACHINES = {CPU_TYPE_ARM64: "arm64", CPU_TYPE_X86_64: "x86_64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """The results of ``proc_pidinfo``, ``proc_pidpath`` and ``csops``."""

    parent: int
    users: frozenset[int]
    """Effective, real and saved."""
    flags: int
    """``PROC_FLAG_…``."""
    status: int
    name: str
    """Its first 15 bytes; of a path, where there is one."""
    path: str
    """Empty if unknown."""
    cpu: tuple[int, int] | None
    """Type and subtype; None if unknown, as for another user's process."""
    code_signing: int
    """``CS_…``; 0 if unknown."""

    @property
    def is_translated(self) -> bool:
        """Whether Rosetta runs it."""
        return bool(self.flags & _PROC_FLAG_ROSETTA)

    @property
    def has_changed_user(self) -> bool:
        """Whether it runs with other rights than those that started it."""
        return bool(self.flags & _PROC_FLAG_PSUGID)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """This process's rights and environment."""

    user: int
    """Effective."""
    integrity: int | None
    """``CSR_…``: the disabled parts of System Integrity Protection; None if unknown."""
    has_debugger_entitlement: bool
    is_translated: bool
    address_bits: int
    """The bits of a pointer that are address."""
    cpu_type: int


def read_rights(extension: TaskExtension) -> Rights:
    """Read the rights of this process."""
    user, integrity, is_debugger, is_translated, bits, cpu_type = extension.rights()
    return Rights(
        user=user,
        integrity=None if integrity < 0 else integrity,
        has_debugger_entitlement=is_debugger,
        is_translated=is_translated,
        address_bits=bits if 0 < bits < 64 else _USUAL_ADDRESS_BITS,  # noqa: PLR2004 (bits)
        cpu_type=cpu_type,
    )


def read_process(extension: TaskExtension, pid: int) -> ProcessFacts:
    """Read the system's facts about a running process.

    Raises:
        TargetGoneError: there is none, or it has exited.
    """
    error, row = extension.process(pid)
    if error or row is None:
        raise TargetGoneError(f"process {pid} does not exist", pid=pid)
    parent, users, flags, status, name, path, cpu_type, cpu_subtype, code_signing = row
    facts = ProcessFacts(
        parent=parent,
        users=frozenset(users),
        flags=flags,
        status=status,
        name=path.rpartition(b"/")[2].decode("utf-8", "replace") or name.decode("utf-8", "replace"),
        path=path.decode("utf-8", "surrogateescape"),
        cpu=(cpu_type, cpu_subtype) if cpu_type else None,
        code_signing=code_signing,
    )
    if facts.status == _ZOMBIE:
        raise TargetGoneError(f"process {pid} ({facts.name}) has exited", pid=pid)
    return facts


def process_info(pid: int, facts: ProcessFacts, rights: Rights) -> ProcessInfo:
    """Describe the process.

    Raises:
        TargetSpecError: its threads cannot be captured from this process: it is translated, or
            this process is; it is a 32-bit one, or the kernel.
    """
    named = f"process {pid} ({facts.name})"
    own = _MACHINES.get(rights.cpu_type, hex(rights.cpu_type))
    if facts.flags & _PROC_FLAG_SYSTEM:
        raise TargetSpecError(
            f"{named} is the kernel", remedy="pass the id of a user-space process"
        )
    if facts.is_translated and not rights.is_translated:
        raise TargetSpecError(
            f"{named} is an x86_64 program translated by Rosetta: the kernel has the translation's "
            "registers, not the program's",
            remedy="build the program for arm64; or let Rosetta's debugserver "
            "(/Library/Apple/usr/libexec/oah/debugserver) attach to it, and pass gdb://host:port",
        )
    arch = Arch.ARM64 if rights.cpu_type == CPU_TYPE_ARM64 else Arch.X86_64
    if facts.cpu is not None:
        program_arch = arch_of(*facts.cpu)
        if program_arch is None or program_arch.is_arm64 != arch.is_arm64:
            theirs = _MACHINES.get(facts.cpu[0], hex(facts.cpu[0]))
            raise TargetSpecError(
                f"{named} runs {theirs} code, but this Python runs {own}",
                remedy=f"run machtrace with a Python for {theirs} (arch -{theirs} python3 …)",
            )
        arch = program_arch
    if not facts.flags & _PROC_FLAG_LP64 or arch.pointer_size != 8:  # noqa: PLR2004 (bytes)
        raise TargetSpecError(
            f"{named} is a 32-bit program", remedy="capture it with a debugger that writes a core"
        )
    mask = PacMask.of_width(rights.address_bits) if arch.is_arm64 else PacMask()
    return ProcessInfo(pid=pid, path=facts.path or facts.name, arch=arch, pointer_mask=mask)
