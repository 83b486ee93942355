"""Run inside gdb: what it sees of every thread, as JSON.

Of the registers only those of ``NT_PRSTATUS`` are listed, which every core has. What else gdb
counts among the general ones differs by processor and by gdb (k0 to k7 of AVX-512, pkru, pl3_ssp,
tpidr), and a core without the note of its extension lacks it.

Left out are frames that are in no stack: inlined calls, and tail calls that gdb infers from
debugging information of call sites.
"""

import json

import gdb

STORED = frozenset(
    [f"{width}{name}" for width in "er" for name in ("ax", "bx", "cx", "dx", "si", "di")]
    + [f"{width}{name}" for width in "er" for name in ("bp", "sp", "ip")]
    + ["eflags", "cs", "ss", "ds", "es", "fs", "gs", "fs_base", "gs_base"]
    + [f"r{number}" for number in range(16)]  # x86-64 and arm
    + [f"x{number}" for number in range(31)]
    + ["sp", "lr", "pc", "cpsr"]
)
"""Names of the registers in ``NT_PRSTATUS`` of x86-64, i386, aarch64 and arm."""


def _frames():
    frame = gdb.newest_frame()
    while frame is not None:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            yield frame
        frame = frame.older()


def _thread(thread):
    thread.switch()
    frames = list(_frames())
    registers = {}
    # An inlined frame above the innermost real one has the same registers.
    for register in frames[0].architecture().registers("general"):
        if register.name not in STORED:
            continue
        try:
            registers[register.name] = int(frames[0].read_register(register.name))
        except (gdb.error, ValueError):
            continue  # flags have no number
    return {
        "id": thread.ptid[1],
        "name": thread.name,
        "registers": registers,
        "addresses": [frame.pc() for frame in frames],
    }


def _images():
    lines = gdb.execute("info sharedlibrary", to_string=True).splitlines()
    ranges = {}
    for line in lines:
        fields = line.split()
        if fields and fields[0].startswith("0x"):
            ranges[fields[-1]] = (int(fields[0], 16), int(fields[1], 16))
    return ranges


gdb.execute("set backtrace past-main on")
gdb.execute("set backtrace limit 4096")
# gdb lists them in the order of a hash of pointers.
in_order = sorted(gdb.selected_inferior().threads(), key=lambda thread: thread.num)
threads = [_thread(thread) for thread in in_order]
gdb.write("JSON" + json.dumps({"threads": threads, "images": _images()}) + "\n")
