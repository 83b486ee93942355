"""Replies of stubs as values. The marked ones were recorded from real stubs."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machtrace.errors import MachtraceError, RemoteProtocolError, TargetSpecError
from machtrace.model.address import PacMask
from machtrace.model.arch import Arch
from machtrace.targets.gdbremote.detach import Departure, departure
from machtrace.targets.gdbremote.features import BinaryRead, features_of
from machtrace.targets.gdbremote.host import RemoteSystem, host_of
from machtrace.targets.gdbremote.json_documents import (
    parse_images_info,
    parse_shared_cache,
    parse_threads_info,
)
from machtrace.targets.gdbremote.memory import Piece, split_reads
from machtrace.targets.gdbremote.registers import (
    RegisterReader,
    parse_register_documents,
    parse_register_info,
)
from machtrace.targets.gdbremote.replies import (
    MachException,
    ProcessGone,
    StopReply,
    ThreadName,
    is_error,
    parse_file_result,
    parse_region,
    parse_stop,
    parse_supported,
    parse_thread,
    parse_thread_list,
)
from machtrace.targets.gdbremote.spec import RemoteSpec, parse_spec
from machtrace.targets.gdbremote.xml_documents import (
    parse_libraries_document,
    parse_threads_document,
)

# Recorded from gdbserver 13.1.
GDBSERVER_THREADS = b"""<threads>
<thread id="pfbc.fbc" core="1" name="threads"/>
<thread id="pfbc.fc2" core="1" name="other stack"/>
</threads>
"""
GDBSERVER_LIBRARIES = (
    b'<library-list-svr4 version="1.0" main-lm="0x7f499d7b22e0"><library name="linux-vdso.so.1" '
    b'lm="0x7f499d7b28b0" l_addr="0x7f499d77c000" l_ld="0x7f499d77c440" lmid="0x7f499d7b2118"/>'
    b'<library name="/lib/x86_64-linux-gnu/libc.so.6" lm="0x7f499d774160" l_addr="0x7f499d589000" '
    b'l_ld="0x7f499d75bb60" lmid="0x7f499d7b2118"/></library-list-svr4>'
)
# Recorded from lldb-server 19.1.7.
LLDB_THREADS = (
    b'[{"name":"threads","reason":"signal","registers":{"16":"ec12689d497f0000",'
    b'"6":"0031dd65fc7f0000","7":"b030dd65fc7f0000"},"signal":19,"tid":4028}]'
)
LLDB_REGION = (
    b"start:7f499d589000;size:26000;permissions:r;flags:;"
    b"name:2f7573722f6c69622f7838365f36342d6c696e75782d676e752f6c6962632e736f2e36;"
)
LLDB_HOST = (
    b"triple:7838365f36342d70632d6c696e75782d676e75;ptrsize:8;endian:little;os_version:6.18.44;"
)
# Recorded from qemu-aarch64 7.2: the prefix xi is not declared.
QEMU_TARGET = (
    b'<?xml version="1.0"?><!DOCTYPE target SYSTEM "gdb-target.dtd"><target>'
    b'<architecture>aarch64</architecture><xi:include href="aarch64-core.xml"/></target>'
)


def core_document(names: list[str]) -> bytes:
    """Build a feature with registers of 64 bits."""
    rows = "".join(f'<reg name="{name}" bitsize="64"/>' for name in names)
    return f'<feature name="org.gnu.gdb.aarch64.core">{rows}</feature>'.encode()


ARM64_NAMES = [*(f"x{n}" for n in range(31)), "sp", "pc"]


def test_errors_are_distinguished_from_data():
    """Two digits, words, and data with the same prefix."""
    assert is_error(b"E01")
    assert is_error(b"E08;6e6f")
    assert is_error(b"E.no such thread")
    assert not is_error(b"E0123")
    assert not is_error(b"")


@pytest.mark.parametrize(
    ("text", "thread"),
    [
        ("pfbc.fc2", ThreadName("pfbc.fc2", 0xFBC, 0xFC2)),
        ("p01.395a", ThreadName("p01.395a", 1, 0x395A)),
        ("2f", ThreadName("2f", None, 0x2F)),
        ("-1", None),
        ("p1.-1", None),
        ("0", None),
        ("x", None),
        ("", None),
    ],
)
def test_thread_ids_with_and_without_a_process(text, thread):
    """Neither "all" nor "any" is a thread."""
    assert parse_thread(text) == thread


def test_thread_lists():
    """``m`` and threads, ``l`` at the end; anything else is an error with the reply."""
    assert [t.id for t in parse_thread_list(b"mp1.2,p1.3")] == [2, 3]
    assert parse_thread_list(b"l") == ()
    with pytest.raises(RemoteProtocolError, match="request 'qfThreadInfo', reply 'OK'"):
        parse_thread_list(b"OK")
    with pytest.raises(RemoteProtocolError, match="not all"):
        parse_thread_list(b"m1,,2")


def test_stop_replies():
    """Recorded replies, and the end of a process."""
    stop = parse_stop(b"T0006:0031dd65fc7f0000;07:b030dd65fc7f0000;thread:pfbc.fbc;core:1;")
    assert isinstance(stop, StopReply)
    assert (stop.signal, stop.thread) == (0, ThreadName("pfbc.fbc", 0xFBC, 0xFBC))
    assert parse_stop(b"S05") == StopReply(5, None)
    stop = parse_stop(b"T91thread:7;metype:1;mecount:2;medata:2;medata:100004000;")
    assert stop.exception == MachException(1, (2, 0x100004000))
    assert parse_stop(b"T05metype:x;medata:1;").exception is None
    assert parse_stop(b"W00") == ProcessGone(was_killed=False, code=0)
    assert parse_stop(b"X0b;process:1") == ProcessGone(was_killed=True, code=11)
    assert parse_stop(b"OK") is None


def test_regions():
    """Numbers are hex, names are hex of text; an unmapped range has no permissions."""
    region = parse_region(LLDB_REGION)
    assert (region.start, region.end) == (0x7F499D589000, 0x7F499D5AF000)
    assert region.is_readable
    assert region.name == "/usr/lib/x86_64-linux-gnu/libc.so.6"
    assert not parse_region(b"start:0;size:560237422000;").is_readable
    assert parse_region(b"start:1000;size:4000;permissions:rw;type:stack;").is_stack
    assert parse_region(b"error:6e6f;") is None
    assert parse_region(b"") is None


def test_documents_of_threads_and_libraries():
    """Recorded from gdbserver."""
    threads = parse_threads_document(GDBSERVER_THREADS)
    assert {t.id: name for t, name in threads.items()} == {0xFBC: "threads", 0xFC2: "other stack"}
    assert next(iter(threads)).text == "pfbc.fbc"
    libraries = parse_libraries_document(GDBSERVER_LIBRARIES)
    assert [(library.name, library.bias) for library in libraries] == [
        ("linux-vdso.so.1", 0x7F499D77C000),
        ("/lib/x86_64-linux-gnu/libc.so.6", 0x7F499D589000),
    ]


def test_xml_entities_are_refused():
    """They could expand without end."""
    bomb = (
        b'<!DOCTYPE threads [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>'
        b'<threads><thread id="1" name="&b;"/></threads>'
    )
    with pytest.raises(RemoteProtocolError, match="entities"):
        parse_threads_document(bomb)


def test_registers_of_target_descriptions_that_include_others():
    """Numbers continue from one document to the next; a missing include is skipped."""
    documents = {"target.xml": QEMU_TARGET, "aarch64-core.xml": core_document(ARM64_NAMES)}
    table = parse_register_documents(documents.get)
    assert table.architecture == "aarch64"
    reader = RegisterReader.of(table, Arch.ARM64)
    values = {n: (0x1000 + n).to_bytes(8, "little") for n in range(33)}
    reply = b"".join(value.hex().encode() for value in values.values())
    registers = reader.of_values(reader.split(reply), PacMask.of_width(47))
    assert (registers.pc, registers.sp, registers.fp, registers.lr) == (
        0x1020,
        0x101F,
        0x101D,
        0x101E,
    )
    assert registers.get(19) == 0x1013


def test_a_description_that_includes_itself_is_an_error():
    itself = b'<target><xi:include href="target.xml"/></target>'
    with pytest.raises(RemoteProtocolError, match="includes"):
        parse_register_documents(lambda _: itself)


def test_registers_by_qregisterinfo():
    """As of lldb-server: explicit offsets; parts of other registers are ignored."""
    rows = [
        b"name:rax;bitsize:64;offset:80;encoding:uint;format:hex;ehframe:0;dwarf:0;",
        b"name:rsp;bitsize:64;offset:152;dwarf:7;generic:sp;",
        b"name:rip;bitsize:64;offset:128;dwarf:16;generic:pc;",
        b"name:eax;bitsize:32;offset:80;container-regs:0;",
    ]
    table = parse_register_info(lambda n: rows[n] if n < len(rows) else b"E45")
    reader = RegisterReader.of(table, Arch.X86_64)
    data = bytearray(200)
    data[80:88], data[152:160], data[128:136] = b"a" * 8, b"s" * 8, b"p" * 8
    registers = reader.of_values(reader.split(data.hex().encode()))
    assert registers.sp == int.from_bytes(b"s" * 8, "little")
    assert registers.pc == int.from_bytes(b"p" * 8, "little")
    assert registers.get(0) == int.from_bytes(b"a" * 8, "little")


def test_unknown_registers_are_none():
    """Stubs send x for unavailable bytes."""
    documents = {"target.xml": core_document(ARM64_NAMES)}
    reader = RegisterReader.of(parse_register_documents(documents.get), Arch.ARM64)
    reply = b"x" * 16 + b"01" * 8 * 32
    registers = reader.of_values(reader.split(reply))
    assert registers.get(0) is None
    assert registers.get(1) == 0x0101010101010101


def test_tables_without_a_stack_pointer_are_refused():
    """The error lists the registers."""
    table = parse_register_documents({"target.xml": core_document(["a", "b"])}.get)
    with pytest.raises(RemoteProtocolError, match=r"a, b"):
        RegisterReader.of(table, Arch.ARM64)


def test_json_of_threads():
    """Recorded from lldb-server; queues as debugserver's documentation has them."""
    (thread,) = parse_threads_info(LLDB_THREADS)
    assert (thread.id, thread.name, thread.queue) == (4028, "threads", None)
    assert thread.registers[7] == bytes.fromhex("b030dd65fc7f0000")
    darwin = b'[{"tid":7,"associated_with_dispatch_queue":%s,"qname":"com.apple.main-thread"}]'
    assert parse_threads_info(darwin % b"true")[0].queue == "com.apple.main-thread"
    assert parse_threads_info(darwin % b"false")[0].queue is None
    for bad in (b"{}", b"[{}]", b"nonsense", b"[" * 100000):
        with pytest.raises(RemoteProtocolError, match="jThreadsInfo"):
            parse_threads_info(bad)


def test_json_of_images():
    """The example of lldb's documentation, whose CPU subtype is a negative number unsigned."""
    (image,) = parse_images_info(
        b'{"images":[{"load_address":4294967296,"mod_date":0,"pathname":"/tmp/a.out",'
        b'"uuid":"02CF262C-ED6F-3965-9E14-63538B465CFF","mach_header":{"magic":4277009103,'
        b'"cputype":16777223,"cpusubtype":18446744071562067971,"filetype":2},"segments":['
        b'{"name":"__PAGEZERO","vmaddr":0,"vmsize":4294967296},'
        b'{"name":"__TEXT","vmaddr":4294967296,"vmsize":4096}]}]}'
    )
    assert image.uuid == UUID("02CF262C-ED6F-3965-9E14-63538B465CFF")
    assert (image.arch, image.is_program, image.text.size) == (Arch.X86_64, True, 4096)
    cache = parse_shared_cache(
        b'{"shared_cache_base_address":140735683125248,"shared_cache_uuid":'
        b'"DDB8D70C-C9A2-3561-B2C8-BE48A4F33F96","no_shared_cache":false}'
    )
    assert cache.base == 140735683125248
    assert parse_shared_cache(b'{"no_shared_cache":true}') is None


def test_hosts():
    """A Linux by its triple; a phone by its CPU numbers, which are in two bases."""
    host = host_of(b"pid:fbc;endian:little;", LLDB_HOST, None, is_linux=False)
    assert (host.arch, host.system, host.pid) == (Arch.X86_64, RemoteSystem.LINUX, 0xFBC)
    phone = host_of(
        b"pid:1f;cputype:100000c;cpusubtype:2;ostype:ios;vendor:apple;endian:little;",
        b"cputype:16777228;cpusubtype:2;addressing_bits:47;ostype:ios;",
        None,
        is_linux=False,
    )
    assert (phone.arch, phone.system) == (Arch.ARM64E, RemoteSystem.DARWIN)
    assert phone.pointer_mask == PacMask.of_width(47)
    with pytest.raises(TargetSpecError, match="big-endian"):
        host_of(b"triple:73333930782d6c696e7578;endian:big;", b"", None, is_linux=False)


def test_features():
    """Documents by name; sizes in hex, with a default if none is stated."""
    found = parse_supported(
        b"PacketSize=47ff;QPassSignals+;qXfer:auxv:read+;qXfer:threads:read+;multiprocess+;vCont?"
    )
    features = features_of(found, has_suffix=False, probe=b"")
    assert features.packet_size == 0x47FF
    assert features.documents == {"auxv", "threads"}
    assert features.has_process_ids
    assert features.binary_read is BinaryRead.NONE
    assert features_of({}, has_suffix=True, probe=b"OK").binary_read is BinaryRead.LLDB
    assert features_of({"PacketSize": "0"}, has_suffix=True, probe=b"b").packet_size == 400


def test_memory_of_many_ranges():
    """Counts, a semicolon, and the bytes; inconsistent replies are refused."""
    pieces = [Piece(0x1000, 4), Piece(0x2000, 4), Piece(0x3000, 2)]
    assert split_reads(pieces, b"?", b"4,0,2;abcdef") == [b"abcd", b"", b"ef"]
    for bad in (b"4,0;abcd", b"4,0,2;abc", b"5,0,2;abcdefg", b"OK", b";", b"4,0,x;abcd"):
        with pytest.raises(RemoteProtocolError):
            split_reads(pieces, b"MultiMemRead", bad)


def test_file_results():
    """The formats of gdbserver and lldb-server."""
    assert parse_file_result(b"F7") == (7, b"")
    assert parse_file_result(b"F-1,16") == (-1, b"16")
    assert parse_file_result(b"F3;a;b") == (3, b"a;b")
    assert parse_file_result(b"") is None


@pytest.mark.parametrize(
    ("attached", "signal", "detaches_stopped", "we_attached", "how"),
    [
        (b"1", 0, False, False, Departure.DETACH),  # gdbserver --attach
        (b"0", 5, False, False, Departure.HANG_UP),  # gdbserver PROGRAM
        (b"", 0x13, False, False, Departure.DETACH),  # lldb-server --attach
        (b"", 0x11, True, False, Departure.DETACH),  # debugserver --attach
        (b"", 5, True, False, Departure.DETACH_STOPPED),  # debugserver PROGRAM
        (b"", 5, False, False, Departure.DETACH),
        (b"0", 5, True, True, Departure.DETACH),  # attached to by us
    ],
)
def test_detaching_restores_running_and_stopped_processes(
    attached, signal, detaches_stopped, we_attached, how
):
    method = departure(
        attached=attached,
        stop=StopReply(signal, None),
        detaches_stopped=detaches_stopped,
        we_attached=we_attached,
    )
    assert method is how


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("gdb://localhost:1234", RemoteSpec(host="localhost", port=1234)),
        ("gdb://:1234", RemoteSpec(host="127.0.0.1", port=1234)),
        ("gdb://[::1]:1234/77", RemoteSpec(host="::1", port=1234, pid=77)),
        ("gdb:///run/stub%20one", RemoteSpec(path="/run/stub one")),
        (
            "gdb://h:1?until=stop&timeout=2.5",
            RemoteSpec(host="h", port=1, runs_to_stop=True, timeout=2.5),
        ),
    ],
)
def test_specs(text, spec):
    """Hosts, addresses of version 6, sockets, processes, options."""
    assert parse_spec(text) == spec


@pytest.mark.parametrize(
    "text",
    [
        "gdb://",
        "gdb://host",
        "gdb://host:0",
        "gdb://host:70000",
        "gdb://host:1/x",
        "gdb://::1:5",
        "gdb://h:1?wait=1",
        "gdb://h:1?timeout=0",
        "gdb://h:1?timeout=x",
        "gdb://h:1?until=noon",
        "gdb:///a%00b",
    ],
)
def test_the_remedy_for_an_invalid_spec_is_a_valid_example(text):
    with pytest.raises(TargetSpecError, match="invalid gdb:// target") as refused:
        parse_spec(text)
    assert "gdb://host:port" in refused.value.remedy


PARSERS = (
    parse_stop,
    parse_region,
    parse_supported,
    parse_thread_list,
    parse_threads_document,
    parse_libraries_document,
    parse_threads_info,
    parse_images_info,
    parse_shared_cache,
    parse_file_result,
    lambda data: parse_register_documents(lambda _: data),
    lambda data: parse_register_info(lambda _: data),
    lambda data: host_of(data, data, None, is_linux=False),
)


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=300), st.sampled_from(PARSERS))
def test_hostile_replies_are_a_value_or_an_error(data, parse):
    with suppress(MachtraceError):
        parse(data)
