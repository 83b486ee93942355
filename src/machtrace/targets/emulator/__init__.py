"""A process inside an emulator, the target emulated:demo.

``demo.macho`` is a Mach-O executable for macOS on arm64, built from ``native/demo``. Without
Apple's linker it cannot carry the platform number of iOS, but its code, its tables and its
calling conventions are the same. ``audited`` is an app with two SDKs, built likewise from
``native/audit-demo``.
"""

from pathlib import Path

PROGRAM = Path(__file__).with_name("demo.macho")
"""The built program."""
AUDITED_APP = Path(__file__).with_name("audited")
"""A folder with the images of an app, whose calls of privacy APIs follow a script."""
