"""A process that Frida reaches: of this machine, of a USB device, or where a frida-server runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from machtrace.errors import TargetError, TargetSpecError
from machtrace.model.options import DEFAULT_STACK_LIMIT
from machtrace.model.snapshot import ProcessInfo, Snapshot, ThreadId, ThreadInfo
from machtrace.targets.base import ClosedWhenLeft
from machtrace.targets.frida.agent import Fields, FridaAgent
from machtrace.targets.frida.copies import MAX_STACK_SIZE
from machtrace.targets.frida.darwin import FridaDarwin
from machtrace.targets.frida.linux import FridaLinux
from machtrace.targets.frida.script import FridaScript, agent_source, c_sources, check_version
from machtrace.targets.frida.spec import parse_spec


class _System(Protocol):
    """The use of the script in a process of one system."""

    hidden: int

    @property
    def process(self) -> ProcessInfo: ...

    def threads(self) -> tuple[ThreadInfo, ...]: ...

    def snapshot(self, threads: Collection[ThreadId] | None, stack_limit: int) -> Snapshot: ...


def _system(agent: FridaAgent, hello: Fields) -> _System:
    platform = hello.text("platform")
    if hello.flag("signedOnly"):
        raise TargetError(
            "the process runs signed code only, so the code that copies threads cannot be loaded",
            remedy="reach it by device:// or gdb://, or by frida-server on a jailbroken device",
        )
    if platform == "linux":
        return FridaLinux(agent, hello)
    if platform == "darwin":
        return FridaDarwin(agent, hello)
    raise TargetSpecError(
        f"unsupported operating system of the process: {platform}",
        remedy="choose a process of Linux, macOS or iOS",
    )


class FridaTarget(ClosedWhenLeft):
    """A process with a script of ours in it; see :class:`~machtrace.targets.base.Target`.

    Each thread is stopped only while its registers and its stack are copied, all of them in one
    call of the script (docs/decisions/0025-frida-copies-we-walk.md). Frida's own threads are left
    out. When the target is closed the script is unloaded and Frida detaches; docs/frida.md lists
    what remains of it in the process.

    Args:
        place: a ``frida://`` target (:func:`~machtrace.targets.frida.spec.parse_spec`),
            or a script that is loaded already, which is taken over.

    Raises:
        MissingExtraError: Frida is not installed.
        TargetSpecError: the words name no process, or it is of a system that is not known here.
        TargetGoneError: there is no process of that id.
        TargetAccessError: Frida may not attach to it.
        ConnectionLostError: no server answers, or not in time.
        RemoteProtocolError: the script in the process does not answer as it should.
        TargetError: Frida cannot load a script there.
    """

    def __init__(self, place: str | FridaAgent) -> None:
        self._agent: FridaAgent | None = (
            FridaScript(parse_spec(place), agent_source()) if isinstance(place, str) else place
        )
        try:
            hello = Fields(self._agent.ask("begin", c_sources()).value, "begin")
            check_version(hello.text("version"))
            self._system: _System = _system(self._agent, hello)
        except BaseException:
            self.close()
            raise

    @property
    def process(self) -> ProcessInfo:
        """Which one."""
        return self._system.process

    @property
    def hidden_threads(self) -> int:
        """How many threads of Frida's own were last left out."""
        return self._system.hidden

    def threads(self) -> tuple[ThreadInfo, ...]:
        """See :meth:`~machtrace.targets.base.Target.threads`.

        Raises:
            TargetGoneError: it exited.
            ConnectionLostError, RemoteProtocolError: the script does not answer.
        """
        self._check_open()
        return self._system.threads()

    def snapshot(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
    ) -> Snapshot:
        """See :meth:`~machtrace.targets.base.Target.snapshot`.

        Raises:
            TargetGoneError: it exited.
            ConnectionLostError, RemoteProtocolError: the script does not answer.
        """
        self._check_open()
        return self._system.snapshot(threads, max(0, min(stack_limit, MAX_STACK_SIZE)))

    def close(self) -> None:
        """See :meth:`~machtrace.targets.base.Target.close`."""
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.close()

    def _check_open(self) -> None:
        if self._agent is None:
            raise TargetError("the target is closed", remedy="open it again")
