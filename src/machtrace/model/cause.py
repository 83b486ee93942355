"""Why a thread was stopped for good: a signal, a Mach exception, or both.

Sources of numbers and words: Linux's ``asm-generic/siginfo.h`` and sigaction(2), lldb's
``LinuxSignals.cpp``, Darwin's ``sys/signal.h``, ``mach/exception_types.h`` and
``mach/kern_return.h``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from machtrace.frozen import dataclass
from machtrace.model.address import Avma
from machtrace.model.arch import Arch
from machtrace.model.text import counted

EXCEPTION_TYPES = {
    1: "EXC_BAD_ACCESS",
    2: "EXC_BAD_INSTRUCTION",
    3: "EXC_ARITHMETIC",
    4: "EXC_EMULATION",
    5: "EXC_SOFTWARE",
    6: "EXC_BREAKPOINT",
    7: "EXC_SYSCALL",
    8: "EXC_MACH_SYSCALL",
    9: "EXC_RPC_ALERT",
    10: "EXC_CRASH",
    11: "EXC_RESOURCE",
    12: "EXC_GUARD",
    13: "EXC_CORPSE_NOTIFY",
}
"""``mach/exception_types.h``."""

_COMMON_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    13: "SIGPIPE",
    14: "SIGALRM",
    15: "SIGTERM",
    21: "SIGTTIN",
    22: "SIGTTOU",
    24: "SIGXCPU",
    25: "SIGXFSZ",
    26: "SIGVTALRM",
    27: "SIGPROF",
    28: "SIGWINCH",
}
LINUX_SIGNALS = _COMMON_SIGNALS | {
    7: "SIGBUS",
    10: "SIGUSR1",
    12: "SIGUSR2",
    16: "SIGSTKFLT",
    17: "SIGCHLD",
    18: "SIGCONT",
    19: "SIGSTOP",
    20: "SIGTSTP",
    23: "SIGURG",
    29: "SIGIO",
    30: "SIGPWR",
    31: "SIGSYS",
    34: "SIGRTMIN",
    **{34 + number: f"SIGRTMIN+{number}" for number in range(1, 16)},
    **{64 - number: f"SIGRTMAX-{number}" for number in range(1, 15)},
    64: "SIGRTMAX",
}
"""``asm-generic/signal.h``: x86 and arm; real-time signals as bash and lldb name them."""
DARWIN_SIGNALS = _COMMON_SIGNALS | {
    7: "SIGEMT",
    10: "SIGBUS",
    12: "SIGSYS",
    16: "SIGURG",
    17: "SIGSTOP",
    18: "SIGTSTP",
    19: "SIGCONT",
    20: "SIGCHLD",
    23: "SIGIO",
    29: "SIGINFO",
    30: "SIGUSR1",
    31: "SIGUSR2",
}
"""Darwin's ``sys/signal.h``; gdb's remote protocol has the same numbers, but for SIGLOST at 29."""
_DARWIN_NUMBERS = {name: number for number, name in DARWIN_SIGNALS.items()}

_FATAL = frozenset(
    {
        *("SIGQUIT", "SIGILL", "SIGTRAP", "SIGABRT", "SIGEMT", "SIGBUS", "SIGFPE", "SIGSEGV"),
        *("SIGXCPU", "SIGXFSZ", "SIGSYS"),
    }
)
"""Signals whose default action writes a core (signal(7)). A debugger that writes one stops threads
by others."""
_WITH_ADDRESS = frozenset({"SIGILL", "SIGTRAP", "SIGBUS", "SIGFPE", "SIGSEGV"})
_NULL_END = 0x10000
"""The default ``vm.mmap_min_addr``: nothing is mapped below, and members of a null object lie
there. Darwin's 64-bit programs map nothing below 4 GB."""
_SI_KERNEL = 0x80
_SI_USER, _SI_QUEUE, _SI_TKILL = 0, -1, -6
_SENT = frozenset({_SI_USER, _SI_QUEUE, _SI_TKILL})
_SENDERS = {
    _SI_USER: "SI_USER",
    _SI_QUEUE: "SI_QUEUE",
    -2: "SI_TIMER",
    -3: "SI_MESGQ",
    -4: "SI_ASYNCIO",
    -5: "SI_SIGIO",
    _SI_TKILL: "SI_TKILL",
    _SI_KERNEL: "SI_KERNEL",
}
_CODES: dict[str, tuple[tuple[int, str, str], ...]] = {
    "SIGILL": (
        (1, "ILL_ILLOPC", "illegal opcode"),
        (2, "ILL_ILLOPN", "illegal operand"),
        (3, "ILL_ILLADR", "illegal addressing mode"),
        (4, "ILL_ILLTRP", "illegal trap"),
        (5, "ILL_PRVOPC", "privileged opcode"),
        (6, "ILL_PRVREG", "privileged register"),
        (7, "ILL_COPROC", "coprocessor error"),
        (8, "ILL_BADSTK", "internal stack error"),
    ),
    "SIGFPE": (
        (1, "FPE_INTDIV", "integer divide by zero"),
        (2, "FPE_INTOVF", "integer overflow"),
        (3, "FPE_FLTDIV", "floating point divide by zero"),
        (4, "FPE_FLTOVF", "floating point overflow"),
        (5, "FPE_FLTUND", "floating point underflow"),
        (6, "FPE_FLTRES", "floating point inexact result"),
        (7, "FPE_FLTINV", "floating point invalid operation"),
        (8, "FPE_FLTSUB", "subscript out of range"),
    ),
    "SIGSEGV": (
        (1, "SEGV_MAPERR", "address not mapped to object"),
        (2, "SEGV_ACCERR", "invalid permissions for mapped object"),
        (3, "SEGV_BNDERR", "failed address bounds checks"),
        (4, "SEGV_PKUERR", "access denied by memory protection keys"),
        (8, "SEGV_MTEAERR", "async tag check fault"),
        (9, "SEGV_MTESERR", "sync tag check fault"),
        (10, "SEGV_CPERR", "control protection fault"),
        (_SI_KERNEL, "SI_KERNEL", "invalid address"),
    ),
    "SIGBUS": (
        (1, "BUS_ADRALN", "illegal alignment"),
        (2, "BUS_ADRERR", "illegal address"),
        (3, "BUS_OBJERR", "hardware error"),
        (4, "BUS_MCEERR_AR", "hardware memory error, action required"),
        (5, "BUS_MCEERR_AO", "hardware memory error, action optional"),
    ),
    "SIGTRAP": (
        (1, "TRAP_BRKPT", "breakpoint"),
        (2, "TRAP_TRACE", "single step"),
        (3, "TRAP_BRANCH", "branch"),
        (4, "TRAP_HWBKPT", "hardware breakpoint"),
    ),
    "SIGSYS": ((1, "SYS_SECCOMP", "system call refused by seccomp"),),
}
SIGNAL_CODES = {name: meaning for codes in _CODES.values() for _, name, meaning in codes}
"""The codes of signals in words, by name."""
_LLDB_DESCRIBES = frozenset({"SIGILL", "SIGFPE", "SIGSEGV", "SIGBUS"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a thread was stopped, as far as its system states it; absent facts are None or empty."""

    signal: str | None = None
    """``SIGSEGV``; ``signal 70`` for one without a name."""
    signal_number: int | None = None
    """As the process's system numbers signals."""
    code: int | None = None
    """``si_code``."""
    code_name: str | None = None
    """``SEGV_MAPERR``."""
    exception: str | None = None
    """A Mach exception: ``EXC_BAD_ACCESS``."""
    exception_codes: tuple[int, ...] = ()
    """The exception's code and subcode."""
    meaning: str = ""
    """The code in words: ``address not mapped to object``."""
    address: Avma | None = None
    """The address that was accessed, or the instruction's, if the signal or exception has one."""
    region: str = ""
    """The memory at the address, in words: ``near null``."""
    sender: int | None = None
    """The id of the process that sent the signal."""
    sender_user: int | None = None
    """The user id of that process."""
    trap: str = ""
    """The arm64 processor's exception class in a Darwin core: ``ESR_EC_DABORT_EL0``. It may be of
    an earlier exception; lldb prints it as the stop reason."""
    trap_address: Avma | None = None
    """The address in the exception state, which not every class sets."""

    @property
    def is_fatal(self) -> bool:
        """Whether the default action on it ends the process and writes a core."""
        return self.exception is not None or self.signal in _FATAL

    @property
    def is_shown(self) -> bool:
        """Whether text shows it: debuggers that write cores stop all threads by SIGSTOP."""
        return self.signal != "SIGSTOP" and bool(self.name)

    @property
    def name(self) -> str:
        """The exception and its signal, or the signal and its code: ``SIGSEGV (SEGV_MAPERR)``."""
        first, second = self.signal or "", self.code_name
        if self.exception is not None:
            first, second = self.exception, self.signal
        return f"{first} ({second})" if second else first

    def __str__(self) -> str:
        address = "" if self.address is None else f" at {self.address:#x}"
        kernel_code = self.code_name if self.exception is not None else None
        reasons = ", ".join(filter(None, (kernel_code, self.meaning, self.region, self._sender)))
        return f"{self.name}{address}: {reasons}" if reasons else f"{self.name}{address}"

    @property
    def _sender(self) -> str:
        if self.sender is None:
            return ""
        user = "" if self.sender_user is None else f" of user {self.sender_user}"
        return f"sent by process {self.sender}{user}"

    @property
    def lldb_text(self) -> str:
        """The cause as lldb prints it after ``stop reason =``."""
        if self.trap:
            return f"{self.trap} (fault address: {self.trap_address or 0:#x})"
        if self.exception is not None:
            codes = ", ".join(self._lldb_codes())
            return f"{self.exception} ({codes})" if codes else self.exception
        text = f"signal {(self.signal or '').removeprefix('signal ')}"
        if self.signal not in _LLDB_DESCRIBES or not self.meaning:
            return text
        text += f": {self.meaning}"
        if self.signal == "SIGSEGV" and self.address is not None:
            text += f" (fault address: {self.address:#x})"
        return text

    def _lldb_codes(self) -> Iterator[str]:
        if not self.exception_codes:
            return
        code, *others = self.exception_codes
        name = self.code_name or ""
        # lldb has names for x86's codes alone.
        yield f"code={name if name.startswith('EXC_I386_') else code}"
        if others:
            label = "address" if self.exception == "EXC_BAD_ACCESS" else "subcode"
            yield f"{label}={others[0]:#x}"


SOFTWARE_SIGNAL = 0x10003
"""``EXC_SOFT_SIGNAL``: the code of an ``EXC_SOFTWARE`` that is a signal."""
_ACCESS_CODES = {
    1: "KERN_INVALID_ADDRESS",
    2: "KERN_PROTECTION_FAILURE",
    9: "KERN_FAILURE",
    10: "KERN_MEMORY_ERROR",
    50: "KERN_CODESIGN_ERROR",
}
"""``mach/kern_return.h``."""
_X86_CODES: dict[tuple[str, int], str] = {
    ("EXC_BAD_ACCESS", 13): "EXC_I386_GPFLT",
    ("EXC_BAD_INSTRUCTION", 1): "EXC_I386_INVOP",
    ("EXC_BAD_INSTRUCTION", 10): "EXC_I386_INVTSSFLT",
    ("EXC_BAD_INSTRUCTION", 11): "EXC_I386_SEGNPFLT",
    ("EXC_BAD_INSTRUCTION", 12): "EXC_I386_STKFLT",
    ("EXC_ARITHMETIC", 1): "EXC_I386_DIV",
    ("EXC_ARITHMETIC", 2): "EXC_I386_INTO",
    ("EXC_ARITHMETIC", 4): "EXC_I386_EXTOVR",
    ("EXC_ARITHMETIC", 5): "EXC_I386_EXTERR",
    ("EXC_ARITHMETIC", 8): "EXC_I386_SSEEXTERR",
    ("EXC_SOFTWARE", 7): "EXC_I386_BOUND",
    ("EXC_BREAKPOINT", 1): "EXC_I386_SGL",
    ("EXC_BREAKPOINT", 2): "EXC_I386_BPT",
}
"""``mach/i386/exception.h``."""
_ARM_CODES: dict[tuple[str, int], str] = {
    ("EXC_BAD_ACCESS", 0x101): "EXC_ARM_DA_ALIGN",
    ("EXC_BAD_ACCESS", 0x102): "EXC_ARM_DA_DEBUG",
    ("EXC_BAD_ACCESS", 0x103): "EXC_ARM_SP_ALIGN",
    ("EXC_BAD_ACCESS", 0x104): "EXC_ARM_SWP",
    ("EXC_BAD_ACCESS", 0x105): "EXC_ARM_PAC_FAIL",
    ("EXC_BAD_INSTRUCTION", 1): "EXC_ARM_UNDEFINED",
    ("EXC_BREAKPOINT", 1): "EXC_ARM_BREAKPOINT",
}
"""``mach/arm/exception.h``."""
_EXCEPTION_SIGNALS = {
    "EXC_BAD_ACCESS": "SIGBUS",
    "EXC_BAD_INSTRUCTION": "SIGILL",
    "EXC_ARITHMETIC": "SIGFPE",
    "EXC_EMULATION": "SIGEMT",
    "EXC_BREAKPOINT": "SIGTRAP",
}
_SEGMENTATION_FAULTS = frozenset({"KERN_INVALID_ADDRESS", "EXC_I386_GPFLT"})


def mach_cause(kind: int | str, codes: tuple[int, ...], arch: Arch) -> Cause:
    """Return the cause that a Mach exception is.

    The signal is the one that xnu makes of it (``bsd/uxkern/ux_exception.c``): for an access that
    depends on the code, so that without codes it is unknown.

    Args:
        kind: the exception's number or name.
        codes: its code and subcode; none if unknown.
        arch: the process's architecture.
    """
    name = EXCEPTION_TYPES.get(kind, f"exception {kind}") if isinstance(kind, int) else kind
    is_access = name == "EXC_BAD_ACCESS"
    code_name = None
    if codes:
        of_arch = _ARM_CODES if arch.is_arm64 or arch.is_arm else _X86_CODES
        code_name = of_arch.get((name, codes[0])) or (
            _ACCESS_CODES.get(codes[0]) if is_access else None
        )
    signal = _EXCEPTION_SIGNALS.get(name)
    if is_access and not codes:
        signal = None
    elif is_access and code_name in _SEGMENTATION_FAULTS:
        signal = "SIGSEGV"
    # The subcode of a general protection fault is the processor's error code.
    has_address = is_access and len(codes) > 1 and code_name != "EXC_I386_GPFLT"
    return Cause(
        exception=name,
        exception_codes=codes,
        code_name=code_name,
        signal=signal,
        signal_number=_DARWIN_NUMBERS.get(signal or ""),
        address=Avma(codes[1]) if has_address else None,
        region=_null_region(codes[1] if has_address else None),
    )


def linux_cause(
    number: int,
    code: int | None = None,
    address: int | None = None,
    sender: int | None = None,
    user: int | None = None,
) -> Cause:
    """Return the cause that a Linux signal is.

    Args:
        number: ``si_signo``.
        code: ``si_code``; None if only the signal is known.
        address: ``si_addr``, read wherever the siginfo may have it.
        sender: ``si_pid``, likewise.
        user: ``si_uid``, likewise.
    """
    name = LINUX_SIGNALS.get(number, f"signal {number}")
    if code is None:
        return Cause(signal=name, signal_number=number)
    if code in _SENDERS and not (name == "SIGSEGV" and code == _SI_KERNEL):
        is_sent = code in _SENT
        return Cause(
            signal=name,
            signal_number=number,
            code=code,
            code_name=_SENDERS[code],
            sender=sender if is_sent else None,
            sender_user=user if is_sent else None,
        )
    named = next((known for known in _CODES.get(name, ()) if known[0] == code), None)
    # The processor does not report a non-canonical address; si_addr is then 0.
    is_withheld = code == _SI_KERNEL
    return Cause(
        signal=name,
        signal_number=number,
        code=code,
        code_name=None if named is None else named[1],
        meaning="" if named is None else named[2],
        address=Avma(address)
        if name in _WITH_ADDRESS and address is not None and not is_withheld
        else None,
        region="not stated by the processor"
        if is_withheld
        else _null_region(address if name == "SIGSEGV" else None),
    )


_STACK_GAP = 1 << 20
"""Linux maps nothing in 256 pages below a growing stack (``stack_guard_gap``)."""


def below_stack(
    address: int, start: int, end: int, stack_pointers: Iterable[tuple[str, int]]
) -> str:
    """Return how far an address is below a stack, in words; empty if it is below none.

    Args:
        address: in no mapping.
        start: the first address of the next mapping above.
        end: the mapping's end.
        stack_pointers: names of stacks, and stack pointers; one in the mapping or in the gap below
            proves that the mapping is that stack.
    """
    if start - address > _STACK_GAP:
        return ""
    for stack, sp in stack_pointers:
        if start - _STACK_GAP <= sp < end:
            return f"{counted(start - address, 'byte')} below {stack}"
    return ""


def stack_name(thread: int, *, is_own: bool) -> str:
    """Return words for the stack of a thread, by its id, or of the thread that is described."""
    return "this thread's stack" if is_own else f"the stack of thread {thread}"


def _null_region(address: int | None) -> str:
    if address is None or address >= _NULL_END:
        return ""
    return "near null" if address else "a null pointer"
