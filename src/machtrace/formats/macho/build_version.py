"""The platform that an image was built for (``mach-o/loader.h``: ``build_version_command``)."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from machtrace.formats.macho.load_commands import (
    LC_BUILD_VERSION,
    LC_VERSION_MIN_IPHONEOS,
    LC_VERSION_MIN_MACOSX,
    LC_VERSION_MIN_TVOS,
    LC_VERSION_MIN_WATCHOS,
    LoadCommand,
)
from machtrace.formats.macho.structs import BUILD_VERSION_COMMAND, VERSION_MIN_COMMAND
from machtrace.frozen import dataclass


class Platform(Enum):
    """A ``PLATFORM_`` constant; the value is the name that ``vtool`` prints."""

    UNKNOWN = "unknown"
    MACOS = "macos"
    IOS = "ios"
    TVOS = "tvos"
    WATCHOS = "watchos"
    BRIDGEOS = "bridgeos"
    MACCATALYST = "maccatalyst"
    IOS_SIMULATOR = "iossimulator"
    TVOS_SIMULATOR = "tvossimulator"
    WATCHOS_SIMULATOR = "watchossimulator"
    DRIVERKIT = "driverkit"
    VISIONOS = "visionos"
    VISIONOS_SIMULATOR = "visionossimulator"
    FIRMWARE = "firmware"
    SEPOS = "sepos"
    MACOS_EXCLAVECORE = "macos-exclavecore"
    MACOS_EXCLAVEKIT = "macos-exclavekit"
    IOS_EXCLAVECORE = "ios-exclavecore"
    IOS_EXCLAVEKIT = "ios-exclavekit"
    TVOS_EXCLAVECORE = "tvos-exclavecore"
    TVOS_EXCLAVEKIT = "tvos-exclavekit"
    WATCHOS_EXCLAVECORE = "watchos-exclavecore"
    WATCHOS_EXCLAVEKIT = "watchos-exclavekit"
    VISIONOS_EXCLAVECORE = "visionos-exclavecore"
    VISIONOS_EXCLAVEKIT = "visionos-exclavekit"


_BY_NUMBER = tuple(Platform)

_OLD_COMMANDS = {
    LC_VERSION_MIN_MACOSX: Platform.MACOS,
    LC_VERSION_MIN_IPHONEOS: Platform.IOS,
    LC_VERSION_MIN_TVOS: Platform.TVOS,
    LC_VERSION_MIN_WATCHOS: Platform.WATCHOS,
}

BUILD_VERSION_COMMANDS = frozenset({LC_BUILD_VERSION, *_OLD_COMMANDS})


class Version(NamedTuple):
    """``xxxx.yy.zz``, as load commands pack it into 32 bits."""

    major: int
    minor: int
    patch: int

    @classmethod
    def unpack(cls, packed: int) -> Version:
        """Unpack 16, 8 and 8 bits."""
        return cls(packed >> 16, packed >> 8 & 0xFF, packed & 0xFF)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}" + (f".{self.patch}" if self.patch else "")


@dataclass(frozen=True, slots=True)
class BuildVersion:
    """A platform, its minimum version and the version of the SDK."""

    platform: Platform
    """The platform; from an LC_VERSION_MIN command, which names no simulator, the device's."""
    minos: Version
    sdk: Version
    """The SDK's version; 0.0 if the linker did not state it."""


def parse_build_version(command: LoadCommand, source: str) -> BuildVersion:
    """Parse an LC_BUILD_VERSION, or one of the older LC_VERSION_MIN commands.

    Raises:
        MachOError: the command is too short.
    """
    old = _OLD_COMMANDS.get(command.cmd)
    if old is not None:
        minimum = command.unpack(VERSION_MIN_COMMAND, source)
        return BuildVersion(old, Version.unpack(minimum.version), Version.unpack(minimum.sdk))
    row = command.unpack(BUILD_VERSION_COMMAND, source)
    known = row.platform < len(_BY_NUMBER)
    platform = _BY_NUMBER[row.platform] if known else Platform.UNKNOWN
    return BuildVersion(platform, Version.unpack(row.minos), Version.unpack(row.sdk))
