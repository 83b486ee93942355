"""A process inside an emulator, the target emulated:demo.

``demo.macho`` is a Mach-O executable for macOS on arm64, built from ``native/demo``. Without
Apple's linker it cannot carry the platform number of iOS, but its code, its tables and its
calling conventions are the same.
"""

from pathlib import Path

PROGRAM = Path(__file__).with_name("demo.macho")
"""The built program."""
