"""An emulated iOS-like app with two SDKs, whose calls of privacy APIs follow a script.

The script is in ``native/audit-demo/app.m``. One image stands for the system: it defines the
classes and functions that the app and its SDKs call, by the names of Apple's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from machtrace.errors import FileAccessError, MissingExtraError
from machtrace.formats.macho.contents import MachOFileContents
from machtrace.model.address import Avma, PacMask
from machtrace.model.arch import Arch
from machtrace.model.image import BinaryImage, ImageFormat, ImageList
from machtrace.model.memory import MemoryRegion, RegionMemory
from machtrace.model.registers import RegisterSet
from machtrace.model.snapshot import ProcessInfo, Snapshot
from machtrace.targets.emulator import AUDITED_APP

CONSENT = "-[Agreement accept]"
"""The app's method that is called when the user consents."""
BACKGROUND = "-[AppDelegate applicationDidEnterBackground:]"
"""That which is called when the app is left."""
SPEC = "emulated:demo"
APP = AUDITED_APP / "Demo.app"
_CONTAINER = "/private/var/containers/Bundle/Application/Demo"
_IMAGES = {
    f"{_CONTAINER}/Demo.app/Demo": APP / "Demo",
    f"{_CONTAINER}/Demo.app/Frameworks/Analytics.framework/Analytics": (
        APP / "Frameworks" / "Analytics.framework" / "Analytics"
    ),
    f"{_CONTAINER}/Demo.app/Frameworks/Advertising.framework/Advertising": (
        APP / "Frameworks" / "Advertising.framework" / "Advertising"
    ),
    "/usr/lib/libDemoSystem.dylib": AUDITED_APP / "libDemoSystem.dylib",
}
"""By path in the process, the program first: the file."""
_FIRST, _DISTANCE = 0x104000000, 0x1000000
_ADDRESS_WIDTH = 47


class EmulatedCall(NamedTuple):
    """A thread at the first instruction of a function."""

    thread: int
    is_main: bool
    time_ns: int
    """By the emulated clock, from the start."""
    registers: RegisterSet
    stack: MemoryRegion
    """From the stack pointer on."""
    true_stack: tuple[Avma, ...] | None
    """Return addresses, the innermost first, if calls were recorded."""


class AuditedApp:
    """The app in an emulator, not started."""

    def __init__(self, *, record_calls: bool = False) -> None:
        """Load it.

        Args:
            record_calls: watch every call and return, for :attr:`EmulatedCall.true_stack`.

        Raises:
            MissingExtraError: the library that emulates is not installed.
            FileAccessError, MachOError: the app was taken out of the package, or altered.
        """
        try:
            from machtrace.targets.emulator.images import PlacedImage
            from machtrace.targets.emulator.machine import Emulator
        except ImportError as error:
            # Without a name it is unicorn's own library that cannot be loaded.
            if error.name is not None and error.name.partition(".")[0] != "unicorn":
                raise
            raise MissingExtraError(SPEC, extra="emulator") from error
        placed: list[PlacedImage] = []
        images: list[BinaryImage] = []
        for number, (path, file) in enumerate(_IMAGES.items()):
            try:
                contents = MachOFileContents(file.read_bytes(), file.name)
            except OSError as error:
                raise FileAccessError(str(file), error.strerror or "cannot be read") from error
            image, start = contents.image, _FIRST + number * _DISTANCE
            placed.append(PlacedImage(contents, start - image.header_svma))
            text = image.text_segment
            images.append(
                BinaryImage(
                    path=path,
                    uuid=image.uuid,
                    arch=image.arch,
                    format=ImageFormat.MACHO,
                    load_address=Avma(start),
                    header_svma=image.header_svma,
                    size=0 if text is None else text.vmsize,
                )
            )
        self.images = ImageList(images)
        self.path = images[0].path
        """The program's."""
        self._emulator = Emulator(
            placed[0].contents,
            slide=placed[0].slide,
            places={},
            record_calls=record_calls,
            libraries=placed[1:],
        )

    def snapshot(self) -> Snapshot:
        """Return the process without threads."""
        return Snapshot(
            process=ProcessInfo(
                pid=None,
                path=self.path,
                arch=Arch.ARM64,
                pointer_mask=PacMask.of_width(_ADDRESS_WIDTH),
            ),
            threads=(),
            images=self.images,
            memory=RegionMemory(self._emulator.regions),
        )

    def run(self, watched: Iterable[Avma], take: Callable[[EmulatedCall], None]) -> None:
        """Run the app to its end, once.

        Args:
            watched: addresses of functions.
            take: called before the first instruction of each of their calls.

        Raises:
            TargetError: a thread failed.
        """
        from machtrace.targets.emulator.machine import EmulatedThread

        emulator = self._emulator

        def arrived(thread: EmulatedThread) -> None:
            registers = thread.registers
            start = registers.sp or thread.stack_end
            true = None if thread.shadow is None else thread.shadow.return_addresses
            take(
                EmulatedCall(
                    thread=thread.id,
                    is_main=thread.index == 1,
                    time_ns=emulator.now_ns,
                    registers=registers,
                    stack=MemoryRegion(
                        Avma(start), emulator.read(Avma(start), thread.stack_end - start)
                    ),
                    true_stack=true,
                )
            )

        for address in watched:
            emulator.on_arrival(address, arrived)
        emulator.run()
