"""Files of the stub's machine: ``vFile``, which reads what no other request tells.

Source: *Debugging with GDB*, "Host I/O Packets". Nothing is ever written.
"""

from __future__ import annotations

from machtrace.errors import FormatError
from machtrace.targets.gdbremote.replies import parse_file_result
from machtrace.targets.gdbremote.session import GdbSession
from machtrace.targets.shared.proc_maps import Mapping, parse_maps

_PIECE = 1 << 12
_LONGEST = 1 << 24
_READ_ONLY = b",0,0"


def read_maps(session: GdbSession, pid: int) -> tuple[Mapping, ...]:
    """What a Linux process has mapped; none where the stub has no files, or the system no such.

    Raises:
        ConnectionLostError, RemoteProtocolError: the stub answers nothing.
    """
    text = _read_file(session, f"/proc/{pid}/maps")
    try:
        return parse_maps(text.decode("utf-8", "surrogateescape"), f"/proc/{pid}/maps")
    except FormatError:
        return ()


def program_path(session: GdbSession, pid: int) -> str:
    """The path of a Linux process' program; empty where the stub does not tell."""
    name = f"/proc/{pid}/exe".encode().hex().encode()
    found = parse_file_result(session.ask(b"vFile:readlink:" + name))
    if found is None or found[0] <= 0:
        return ""
    return found[1].decode("utf-8", "surrogateescape").removesuffix(" (deleted)")


def _read_file(session: GdbSession, path: str) -> bytes:
    opened = parse_file_result(
        session.ask(b"vFile:open:" + path.encode().hex().encode() + _READ_ONLY)
    )
    if opened is None or opened[0] < 0:
        return b""
    data = bytearray()
    try:
        while len(data) < _LONGEST:
            asked = b"vFile:pread:%x,%x,%x" % (opened[0], _PIECE, len(data))
            part = parse_file_result(session.ask(asked))
            if part is None or part[0] <= 0 or not part[1]:
                break
            data += part[1]
    finally:
        if not session.is_lost:
            session.ask(b"vFile:close:%x" % opened[0])
    return bytes(data[: data.rfind(b"\n") + 1])
