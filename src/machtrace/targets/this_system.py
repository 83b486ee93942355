"""Which targets this system has for its processes: the only place that asks what system it is."""

from __future__ import annotations

import sys
from enum import Enum
from typing import TYPE_CHECKING

from machtrace.targets.base import Target

if TYPE_CHECKING:
    from machtrace.targets.inprocess.threads import OwnTarget


class System(Enum):
    """A system whose processes can be captured."""

    LINUX = "linux"
    DARWIN = "darwin"


def this_system() -> System:
    """The system that this runs on; of others Linux's target says that they are none."""
    return System.DARWIN if sys.platform == "darwin" else System.LINUX


def process_target(pid: int) -> Target:
    """A process by its id; see :func:`machtrace.open_target`."""
    if this_system() is System.DARWIN:
        from machtrace.targets.darwin.task import DarwinTaskTarget

        return DarwinTaskTarget(pid)
    from machtrace.targets.linux.process import LinuxProcessTarget

    return LinuxProcessTarget(pid)


def own_target() -> OwnTarget:
    """This process; see :func:`machtrace.open_target`."""
    if this_system() is System.DARWIN:
        from machtrace.targets.inprocess.darwin import DarwinSelfTarget

        return DarwinSelfTarget()
    from machtrace.targets.inprocess.linux import SelfTarget

    return SelfTarget()
