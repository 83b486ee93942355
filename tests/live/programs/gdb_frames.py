"""Run inside gdb: what it sees of every thread, as JSON.

Left out are frames that are in no stack: inlined calls, and tail calls that gdb infers from
debugging information of call sites.
"""

import json

import gdb


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
        try:
            registers[register.name] = int(frames[0].read_register(register.name))
        except (gdb.error, ValueError):
            continue  # no number: flags, vectors
    return {
        "id": thread.ptid[1],
        "name": thread.name,
        "registers": registers,
        "addresses": [frame.pc() for frame in frames],
    }


def _images():
    lines = gdb.execute("info sharedlibrary", to_string=True).splitlines()
    found = {}
    for line in lines:
        fields = line.split()
        if fields and fields[0].startswith("0x"):
            found[fields[-1]] = (int(fields[0], 16), int(fields[1], 16))
    return found


gdb.execute("set backtrace past-main on")
gdb.execute("set backtrace limit 4096")
# gdb hands them out in the order of a hash of pointers.
in_order = sorted(gdb.selected_inferior().threads(), key=lambda thread: thread.num)
threads = [_thread(thread) for thread in in_order]
gdb.write("JSON" + json.dumps({"threads": threads, "images": _images()}) + "\n")
