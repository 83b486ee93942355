"""The emulated app: its calls by the script, their stacks, and the images."""

import re

import pytest

from machtrace.audit.observed.addresses import AddressFinder
from machtrace.audit.rules import load_rules
from machtrace.errors import MachOError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.images.resolver import ImageResolver
from machtrace.targets.emulator import AUDITED_APP, PROGRAM
from machtrace.targets.emulator.audited import BACKGROUND, CONSENT, AuditedApp
from machtrace.targets.emulator.images import Exports, PlacedImage, loaded_segments
from machtrace.targets.gdbremote.breakpoints import CallStop
from machtrace.targets.gdbremote.call_stacks import CallStacks
from machtrace.unwinder.unwinder import Unwinder
from tests.support.compilers.audit_demo import BUILT_WITH, IMAGES, build
from tests.support.compilers.demo import compiler

SECOND = 1_000_000_000
SCRIPT = [
    (0, "-[UIDevice identifierForVendor]"),
    (0, "sysctlbyname"),
    (0, "+[UIPasteboard generalPasteboard]"),
    (0, "-[UIPasteboard string]"),
    (0, "+[ASIdentifierManager sharedManager]"),
    (0, "-[ASIdentifierManager advertisingIdentifier]"),
    (0, "-[UIDevice name]"),
    (1, CONSENT),
    (2, "-[CLLocationManager requestLocation]"),
    (2, "-[UIDevice identifierForVendor]"),
    (2, "getifaddrs"),
    *[
        (3, "+[ASIdentifierManager sharedManager]"),
        (3, "-[ASIdentifierManager advertisingIdentifier]"),
    ]
    * 3,
    (3, "-[UIDevice name]"),
    (6, BACKGROUND),
    (6, "-[UIDevice identifierForVendor]"),
    (6, "-[CLLocationManager startUpdatingLocation]"),
    (6, "getifaddrs"),
]
"""Seconds after the start, and what is called (native/audit-demo/app.m)."""


@pytest.fixture(scope="module")
def recorded():
    """The app, what is watched, and its calls."""
    app = AuditedApp(record_calls=True)
    files = ImageResolver.of((str(AUDITED_APP),))
    watches = AddressFinder(load_rules("privacy"), files, (CONSENT, BACKGROUND)).find(app.images)
    calls = []
    app.run(watches.watches, calls.append)
    return app, watches.watches, calls


def test_calls_follow_the_script(recorded):
    """All calls, in their order, at the times of the emulated clock."""
    _, watches, calls = recorded
    made = [(call.time_ns // SECOND, watches[call.registers.pc]) for call in calls]
    assert made == SCRIPT


def test_stacks_are_those_of_the_calls(recorded):
    """By unwinding at the first instruction, and by calls and returns."""
    app, _, calls = recorded
    walker = CallStacks(app.snapshot(), Unwinder(ImageResolver.of((str(AUDITED_APP),))))
    for call in calls:
        stack = walker.walk(CallStop(call.thread, 0, call.registers, (call.stack,)))
        assert stack.is_whole
        assert stack.addresses == call.true_stack


def test_a_queue_calls_on_threads_of_its_own(recorded):
    _, watches, calls = recorded
    threads = {call.thread for call in calls if watches[call.registers.pc] == "getifaddrs"}
    assert len(threads) == 2
    assert all(call.is_main is (call.thread not in threads) for call in calls)


def test_what_no_image_exports_is_an_error():
    """The app without its system."""
    contents = MachOFileContents((AUDITED_APP / "Demo.app" / "Demo").read_bytes(), "Demo")
    images = [PlacedImage(contents, 0)]
    with pytest.raises(MachOError, match="no library exports the import"):
        list(loaded_segments(images, Exports(images)))


@pytest.mark.peer
def test_sources_give_the_same_bytes_again(tmp_path):
    """Compiled and linked in another directory, byte for byte."""
    pytest.importorskip("ziglang", reason="the compiler is not installed (ziglang)")
    recorded = BUILT_WITH.read_text().strip()
    if compiler() != recorded:
        pytest.skip(f"the app was built with {recorded}, here is {compiler()}")
    build(tmp_path)
    for path in IMAGES:
        assert (AUDITED_APP / path).read_bytes() == (tmp_path / path).read_bytes()


def test_images_have_no_path_of_a_machine():
    """Paths are those of the loader and of installed images; the images are small."""
    for path in IMAGES:
        data = (AUDITED_APP / path).read_bytes()
        paths = set(re.findall(rb"(?:/[A-Za-z0-9._+-]+){2,}", data))
        assert paths <= {
            b"/usr/lib/dyld",
            b"/usr/lib/libSystem.B.dylib",
            b"/usr/lib/libDemoSystem.dylib",
            b"/Analytics.framework/Analytics",
            b"/Advertising.framework/Advertising",
        }
        assert len(data) < PROGRAM.stat().st_size
