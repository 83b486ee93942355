"""Who owns a frame's code: the app or the system.

Decided by the image's path on the reporting machine, compared with the program's path.
"""

from __future__ import annotations

from enum import Enum

from machtrace.frozen import dataclass

_SYSTEM = (
    *("/System/", "/usr/lib/", "/usr/lib32/", "/usr/lib64/", "/usr/libexec/", "/lib/", "/lib64/"),
    *("/Developer/", "/Library/Apple/", "/Library/Developer/", "/preboot/Cryptexes/", "/cores/"),
)
_RUNTIME_ROOT = ("/RuntimeRoot/", "/Contents/Developer/")
"""Path components of simulators, and of Xcode's own libraries."""
_BUNDLES = (".app", ".appex", ".xctest", ".xpc", ".bundle")
_SWIFT_RUNTIME = "libswift"


class FrameOwner(Enum):
    """Who owns code."""

    APP = "app"
    SYSTEM = "system"
    UNKNOWN = "unknown"
    """Undecided: the image has no path, or neither the app's nor the system's."""


class OwnerReason(Enum):
    """Why code has its owner."""

    PROGRAM = "it is the program"
    BUNDLE = "it is inside the program's bundle"
    BESIDE = "it is beside the program"
    SYSTEM_PATH = "it is where the system has its own"
    SWIFT_RUNTIME = "it is Swift's runtime, which older apps bundle"
    NO_IMAGE = "no image is known to hold it"
    NO_PATH = "the report has no path for the image"
    CULPRIT = "the time went there"
    RULE = "a grouping rule decides"
    ELSEWHERE = "it is neither the system's nor beside the program"


@dataclass(frozen=True, slots=True)
class Ownership:
    """An image's owner, and the reason."""

    owner: FrameOwner
    reason: OwnerReason


NOWHERE = Ownership(FrameOwner.UNKNOWN, OwnerReason.NO_IMAGE)
"""The ownership of a frame that is in no image."""


class Owners:
    """Decides who owns images, for one program."""

    def __init__(self, program: str, name: str = "") -> None:
        """Store the program's location.

        Args:
            program: its path; empty if unknown.
            name: its name, for images without a path.
        """
        self._program = _plain(program)
        self._name = name or self._program.rpartition("/")[2]
        self._bundle = bundle_of(self._program)
        self._folder = self._program.rpartition("/")[0]

    def owner(self, path: str, name: str = "") -> Ownership:
        """Return the owner of the image at ``path``; ``name`` serves if the path is empty."""
        path = _plain(path)
        name = path.rpartition("/")[2] or name
        if (path and path == self._program) or (
            ("/" not in path or not self._program) and name and name == self._name
        ):
            return Ownership(FrameOwner.APP, OwnerReason.PROGRAM)
        if self._bundle and path.startswith(self._bundle + "/"):
            if name.startswith(_SWIFT_RUNTIME) and name.endswith(".dylib"):
                return Ownership(FrameOwner.SYSTEM, OwnerReason.SWIFT_RUNTIME)
            return Ownership(FrameOwner.APP, OwnerReason.BUNDLE)
        if path.startswith(_SYSTEM) or any(one in path for one in _RUNTIME_ROOT):
            return Ownership(FrameOwner.SYSTEM, OwnerReason.SYSTEM_PATH)
        if self._folder and path.startswith(self._folder + "/"):
            return Ownership(FrameOwner.APP, OwnerReason.BESIDE)
        no_path = "/" not in path
        reason = OwnerReason.NO_PATH if no_path else OwnerReason.ELSEWHERE
        return Ownership(FrameOwner.UNKNOWN, reason)


def bundle_of(path: str) -> str:
    """Return the outermost bundle that ``path`` is in, such as ``/x/Demo.app``; empty if none."""
    at = 0
    while (at := path.find("/", at + 1)) != -1:
        if path[:at].endswith(_BUNDLES):
            return path[:at]
    return ""


def _plain(path: str) -> str:
    """Normalise aliases of the same directory on Apple's systems."""
    return path.removeprefix("/private")
