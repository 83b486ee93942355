"""The demo program of ``emulated:demo``: its sources, and the built executable.

``demo.macho`` is built by :mod:`machtrace.targets.emulator.demo.build` from the C, Objective-C and
assembly beside it. It is a Mach-O executable for macOS on arm64: what links without Apple's tools
is not iOS's platform number, but the code, the tables and the calling conventions are the same.
"""

from __future__ import annotations

from pathlib import Path

PROGRAM = Path(__file__).with_name("demo.macho")
"""The built program."""

BUILT_WITH = Path(__file__).with_name("demo.built-with")
"""One line that names the compiler which built :data:`PROGRAM`, as :func:`.build.compiler` does."""
