"""The whole run of the emulated process, walked before each of its instructions."""

from collections import Counter

from machtrace.errors import MemoryReadError, TargetError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.stack import AddressKind, StopReason
from machtrace.targets.emulator import PROGRAM
from machtrace.targets.emulator.machine import Emulator
from machtrace.targets.emulator.target import demo_places
from machtrace.unwinder.rule_cache import RuleCache
from machtrace.unwinder.sources.of_image import image_rules
from machtrace.unwinder.walker import walk

TIMES = 4
"""Most comparisons at one instruction: further rounds of a loop add nothing."""


class Memory:
    """The process's memory, while it runs."""

    def __init__(self, emulator):
        self.emulator = emulator

    def read(self, address, size):
        """Return the memory's present contents."""
        try:
            return self.emulator.read(address, size)
        except TargetError:
            raise MemoryReadError(address, size) from None


def test_walk_is_right_before_every_instruction(demo):
    """From each thread's first instruction to where it stops: machine frames, all and only they.

    The run goes through prologues, epilogues, shrink-wrapped and tail calls, method lookups,
    system calls, asynchronous functions and signed return addresses.
    """
    contents = MachOFileContents(PROGRAM.read_bytes(), "demo.macho")
    images = demo.images()
    process = demo.process
    rules = RuleCache(images, process.arch, lambda _: image_rules(contents, process.arch))
    arrivals: Counter[int] = Counter()
    wrong = {}

    def check(thread):
        pc = thread.registers.pc
        arrivals[pc] += 1
        if arrivals[pc] > TIMES:
            return
        walked = walk(thread.registers, Memory(emulator), rules, process.pointer_mask)
        rest = walked.physical_remainder.addresses if walked.physical_remainder else ()
        machine = [
            found.address
            for found in walked.addresses[1:] + rest
            if found.kind is not AddressKind.ASYNC_RESUME
        ]
        true = [*thread.shadow.return_addresses]
        if machine != true or walked.stop.reason is not StopReason.ROOT:
            wrong[thread.name, hex(pc)] = (walked.stop, [*map(hex, machine)], [*map(hex, true)])

    emulator = Emulator(
        contents,
        slide=next(iter(images)).slide,
        places=demo_places(),
        record_calls=True,
        watch=check,
    )
    emulator.run()
    assert wrong == {}
    assert len(arrivals) > 500
