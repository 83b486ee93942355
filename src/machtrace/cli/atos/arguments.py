"""The arguments of ``atos``, as Apple spells them: one dash, long names too.

Slow imports are avoided here, for a fast first answer. Sources: *atos(1)* of macOS, and the usage
that the command prints; see ``docs/atos.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum

from machtrace.errors import MachtraceError
from machtrace.frozen import dataclass

USAGE = """\
Usage: machtrace atos [-p pid] [-o executable/dSYM] [-f file-of-input-addresses]
        [-s slide | -l loadAddress | -textExecAddress addr | -offset] [-arch architecture]
        [-printHeader] [-fullPath] [-i | -inlineFrames] [-dedup] [-d delimiter] [address ...]

        -o                  a Mach-O or ELF file, a dSYM or app bundle; may be given again
        -p                  a process: its id, or a part of its executable's name
        -arch               which slice of a fat file
        -l                  where the image was loaded; hexadecimal, with or without 0x
        -textExecAddress    where __TEXT_EXEC of a kernel or kext was loaded
        -s                  the image's slide from the address it was linked for
        -offset             addresses count from the image's start
        -f                  a file with addresses, separated by whitespace
        -i, -inlineFrames   show calls that were inlined, the innermost first
        -d, -delimiter      what ends each inlined frame; a newline unless given
        -fullPath           show source files with their folders
        -dedup              show all names of code that the linker merged
        -printHeader        with -p, first show the process's id and name

Addresses are hexadecimal, with or without 0x. Without any they are read from standard input.
"""


class AtosUsageError(MachtraceError):
    """Invalid arguments of ``atos``."""

    remedy = "see machtrace atos -h"


class LoadError(MachtraceError):
    """A file without usable symbols; worded as in Apple's command, since scripts match the text."""

    def __init__(self, path: str, arch: str | None, error: MachtraceError) -> None:
        wanted = "" if arch is None else f" for architecture {arch}"
        super().__init__(
            f"atos cannot load symbols for the file {path}{wanted}. ({error})",
            remedy=error.remedy,
        )


class AddressMode(Enum):
    """The address space of the requested addresses."""

    STATED = "stated"
    """The image at the address that it was linked for."""
    LOADED = "-l"
    TEXT_EXEC = "-textExecAddress"
    SLID = "-s"
    OFFSET = "-offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class AtosRequest:
    """The parsed arguments of ``atos``."""

    files: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    arch: str | None = None
    mode: AddressMode = AddressMode.STATED
    base: int = 0
    """An address, or a slide, which may be negative; :attr:`mode` states which."""
    input_file: str | None = None
    inline: bool = False
    delimiter: str = "\n"
    full_path: bool = False
    dedup: bool = False
    print_header: bool = False
    help: bool = False
    addresses: tuple[str, ...] = ()


def parse_address(text: str) -> int | None:
    """Parse a hexadecimal number of at most 64 bits, with or without ``0x``; None if invalid."""
    digits = text[2:] if text[:2] in ("0x", "0X") else text
    if not digits or not digits.isascii() or not digits.isalnum():
        return None
    try:
        value = int(digits, 16)
    except ValueError:
        return None
    return value if value < 1 << 64 else None


def parse_arguments(arguments: Sequence[str]) -> AtosRequest:
    """Parse ``arguments``, without the command's name.

    Raises:
        AtosUsageError: an option is unknown, lacks its value or contradicts another; or neither a
            file nor a process is named.
    """
    request = AtosRequest()
    rest = list(reversed(arguments))
    while rest:
        word = rest.pop()
        if word == "--":
            request = replace(request, addresses=(*request.addresses, *reversed(rest)))
            break
        if not word.startswith("-") or word == "-":
            request = replace(request, addresses=(*request.addresses, word))
            continue
        name = word.lstrip("-")
        if word[:2] in ("-l", "-s") and parse_address(name[1:]) is not None:
            rest.append(name[1:])  # -l0x100000000
            name = name[0]
        if name in _FLAGS:
            request = _FLAGS[name](request)
        elif name == "offset":
            request = _with_mode(request, AddressMode.OFFSET, 0)
        elif name in _OPTIONS:
            if not rest:
                raise AtosUsageError(f"{word} needs a value")
            request = _OPTIONS[name](request, rest.pop())
        else:
            raise AtosUsageError(f"there is no option {word}")
    if not (request.help or request.files or request.processes):
        raise AtosUsageError("no processes or executables specified")
    return request


def _with_mode(request: AtosRequest, mode: AddressMode, base: int) -> AtosRequest:
    if request.mode not in (AddressMode.STATED, mode):
        raise AtosUsageError("only one of -s, -l, -textExecAddress or -offset can be given")
    return replace(request, mode=mode, base=base)


def _mode(mode: AddressMode) -> Callable[[AtosRequest, str], AtosRequest]:
    def option(request: AtosRequest, text: str) -> AtosRequest:
        negative = mode is AddressMode.SLID and text.startswith("-")
        base = parse_address(text.removeprefix("-") if negative else text)
        if base is None:
            raise AtosUsageError(f"{mode.value} needs a hexadecimal number, not {text!r}")
        return _with_mode(request, mode, -base if negative else base)

    return option


def _inline(request: AtosRequest) -> AtosRequest:
    return replace(request, inline=True)


def _help(request: AtosRequest) -> AtosRequest:
    return replace(request, help=True)


_FLAGS: dict[str, Callable[[AtosRequest], AtosRequest]] = {
    "i": _inline,
    "inlineFrames": _inline,
    "fullPath": lambda request: replace(request, full_path=True),
    "dedup": lambda request: replace(request, dedup=True),
    "printHeader": lambda request: replace(request, print_header=True),
    "h": _help,
    "help": _help,
}
_OPTIONS: dict[str, Callable[[AtosRequest, str], AtosRequest]] = {
    "o": lambda request, text: replace(request, files=(*request.files, text)),
    "p": lambda request, text: replace(request, processes=(*request.processes, text)),
    "arch": lambda request, text: replace(request, arch=text),
    "f": lambda request, text: replace(request, input_file=text),
    "d": lambda request, text: replace(request, delimiter=text),
    "delimiter": lambda request, text: replace(request, delimiter=text),
    "l": _mode(AddressMode.LOADED),
    "s": _mode(AddressMode.SLID),
    "textExecAddress": _mode(AddressMode.TEXT_EXEC),
}
