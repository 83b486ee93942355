"""The system calls of the emulated process, made by a process that only records them."""

import struct

import pytest

from machtrace.errors import MachOError, TargetError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.formats.macho.load_commands import LC_DYLD_INFO_ONLY
from machtrace.targets.emulator import PROGRAM
from machtrace.targets.emulator.machine import Emulator, Kernel, Leave, SystemCall

THREAD_START = 0x102065F00
ANYTHING = (0,) * 8


class Process:
    """Memory of a few bytes; threads and names are recorded in order."""

    def __init__(self):
        self.memory = bytearray(256)
        self.started = []
        self.names = []
        self.now_ns = 5
        self.wakes_at_ns = 0

    def wait_until(self, time_ns):
        """Note it."""
        self.wakes_at_ns = time_ns

    def read(self, address, size):
        """Return the written bytes."""
        return bytes(self.memory[address : address + size])

    def write(self, address, data):
        """Keep it."""
        self.memory[address : address + len(data)] = data

    def allocate(self, _size):
        """Always the same."""
        return 0x280000000

    def start_thread(self, entry, stack_size, arguments):
        """Note it."""
        self.started.append((entry, stack_size, tuple(arguments)))

    def name_thread(self, name):
        """Note it."""
        self.names.append(name)


@pytest.fixture
def process():
    """One that has done nothing."""
    return Process()


@pytest.fixture
def kernel(process):
    """Its kernel, which knows where threads begin."""
    kernel = Kernel(process)
    kernel.call(SystemCall.BSDTHREAD_REGISTER, (THREAD_START, *ANYTHING[1:]))
    return kernel


def test_receiving_blocks(kernel):
    """For ever: nobody sends. Sending is not there at all."""
    assert kernel.call(SystemCall.MACH_MSG_TRAP, (0x40, 2 | 4, *ANYTHING[2:])) is Leave.BLOCKED
    with pytest.raises(TargetError, match="-31"):
        kernel.call(SystemCall.MACH_MSG_TRAP, (0x40, 1, *ANYTHING[2:]))


def test_threads_begin_where_the_process_said(kernel, process):
    """With _pthread_start's arguments: thread, port, function, argument, stack size, flags."""
    create = (0x1111, 0x2222, 0x8000, 0x3333, 7, *ANYTHING[5:])
    assert kernel.call(SystemCall.BSDTHREAD_CREATE, create) == 0x3333
    ((entry, stack_size, arguments),) = process.started
    assert (entry, stack_size) == (THREAD_START, 0x8000)
    thread, port, *others = arguments
    assert (thread, others) == (0x3333, [0x1111, 0x2222, 0x8000, 7])
    assert port != kernel.call(SystemCall.MACH_REPLY_PORT, ANYTHING)


def test_thread_cannot_begin_nowhere(process):
    """bsdthread_create before bsdthread_register is a mistake of the program's."""
    with pytest.raises(TargetError, match="360"):
        Kernel(process).call(SystemCall.BSDTHREAD_CREATE, (1, 2, 0x8000, 4, *ANYTHING[4:]))


def test_memory_is_given_at_the_place_asked_for(kernel, process):
    """Its address is written; sizes out of all proportion are refused as Mach refuses them."""
    assert kernel.call(SystemCall.MACH_VM_ALLOCATE_TRAP, (1, 16, 0x4000, *ANYTHING[3:])) == 0
    assert int.from_bytes(process.memory[16:24], "little") == 0x280000000
    for size in (0, 1 << 40):
        refused = kernel.call(SystemCall.MACH_VM_ALLOCATE_TRAP, (1, 32, size, *ANYTHING[3:]))
        assert refused != 0
    assert process.memory[32:40] == bytes(8)


def test_threads_are_named_by_themselves(kernel, process):
    """Up to 63 bytes, as on Darwin."""
    process.memory[8:12] = b"name"
    assert kernel.call(SystemCall.PROC_INFO, (5, 0, 2, 0, 8, 4, 0, 0)) == 0
    assert process.names == ["name"]
    assert kernel.call(SystemCall.PROC_INFO, (5, 0, 2, 0, 8, 64, 0, 0)) != 0
    assert process.names == ["name"]


@pytest.mark.parametrize("number", [0, 4, -4, SystemCall.PROC_INFO])
def test_other_calls_are_named_in_the_error(kernel, number):
    """None of them is passed over in silence."""
    with pytest.raises(TargetError, match=f"system call {int(number)} "):
        kernel.call(number, ANYTHING)


def test_program_for_another_cpu_is_refused():
    """Before it is mapped."""
    data = bytearray(PROGRAM.read_bytes())
    data[4:8] = (0x01000007).to_bytes(4, "little")  # CPU_TYPE_X86_64
    data[8:12] = (3).to_bytes(4, "little")
    with pytest.raises(MachOError, match="not an arm64 executable"):
        Emulator(MachOFileContents(bytes(data), "demo"), slide=0, places={})


def test_program_that_imports_is_refused():
    """No library has the symbols that it imports."""
    data = bytearray(PROGRAM.read_bytes())
    command = next(MachOFileContents(data, "demo").image.commands_of(LC_DYLD_INFO_ONLY))
    binds = b"\x11\x40_printf\0\x51\x72\0\x90"
    struct.pack_into("<II", data, command.offset + 16, len(data), len(binds))
    with pytest.raises(MachOError, match="import _printf"):
        Emulator(MachOFileContents(bytes(data) + binds, "demo"), slide=0, places={})


@pytest.mark.parametrize("slide", [0x1000 + 1, -(1 << 32) - 0x4000])
def test_slide_that_no_loader_would_choose_is_refused(slide):
    """Not a multiple of a page, or below the first address."""
    contents = MachOFileContents(PROGRAM.read_bytes(), "demo")
    with pytest.raises(TargetError, match="cannot be moved"):
        Emulator(contents, slide=slide, places={})


def test_a_thread_waits_for_a_time_of_the_clock(kernel, process):
    """mach_wait_until; the time itself is that of the process."""
    assert kernel.call(SystemCall.MACH_ABSOLUTE_TIME, ANYTHING) == process.now_ns
    assert kernel.call(SystemCall.MACH_WAIT_UNTIL_TRAP, (700, *ANYTHING[1:])) is Leave.WAITING
    assert process.wakes_at_ns == 700
