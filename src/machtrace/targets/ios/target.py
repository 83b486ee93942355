"""A process of an iOS device: started or found there, and copied through its debugserver.

The words that name a process of an iOS device: ``device://UDID/bundle-id``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from contextlib import suppress
from enum import StrEnum

from machtrace.errors import (
    ConnectionLostError,
    DeviceError,
    MachtraceError,
    RemoteProtocolError,
    TargetSpecError,
)
from machtrace.frozen import dataclass
from machtrace.model.options import DEFAULT_STACK_LIMIT
from machtrace.model.snapshot import ProcessInfo, Snapshot, ThreadId, ThreadInfo
from machtrace.targets.base import ClosedWhenLeft
from machtrace.targets.gdbremote.detach import Connect
from machtrace.targets.gdbremote.process import GdbRemoteTarget
from machtrace.targets.gdbremote.spec import DEFAULT_TIMEOUT, RemoteSpec, parse_options
from machtrace.targets.gdbremote.stream import ByteStream, SocketStream
from machtrace.targets.gdbremote.watched import WatchedStub
from machtrace.targets.ios.access import DeviceAccess, DeviceSession
from machtrace.targets.ios.session import LibraryAccess

DEVICE = "device://"

_PLACE = re.compile(r"([0-9A-Za-z-]{0,64})/([0-9A-Za-z._-]{1,255})/?")
_MAX_PID = (1 << 31) - 1
_REMEDY = (
    "give device://UDID/bundle-id or device://UDID/PID, without the UDID for the only device; "
    "machtrace device list shows UDIDs, machtrace device apps bundle ids"
)


class Launch(StrEnum):
    """Whether an app is launched for a capture."""

    IF_NEEDED = "if-needed"
    """Attached to where it runs, else started."""
    ALWAYS = "always"
    """Launched again; the device ends a running one."""
    NEVER = "never"
    """Attached to, or an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """Which process of which device, and what to do there."""

    udid: str | None = None
    """None for the only device there is."""
    bundle_id: str | None = None
    """The app's bundle id; None if a process id is given."""
    pid: int | None = None
    launch: Launch = Launch.IF_NEEDED
    runs_to_stop: bool = False
    """Whether the process is to run until it stops by itself, before anything is copied."""
    timeout: float = DEFAULT_TIMEOUT
    """Seconds that debugserver may take for one answer."""


def parse_device_spec(text: str) -> DeviceSpec:
    """Parse ``text``, which begins with ``device://``.

    ``?launch=if-needed``, ``always`` or ``never`` states whether the app is launched;
    ``?until=stop`` and ``?timeout=SECONDS`` are those of ``gdb://``.

    Raises:
        TargetSpecError: it names no process of a device.
    """

    def wrong(reason: str) -> TargetSpecError:
        return TargetSpecError(
            f"invalid device:// target {text!r}: {reason}",
            remedy=_REMEDY,
        )

    place, _, query = text.removeprefix(DEVICE).partition("?")
    timeout, runs, others = parse_options(query, wrong, {"launch": tuple(Launch)})
    match = _PLACE.fullmatch(place)
    if match is None:
        raise wrong("no UDID, slash and bundle id")
    udid, process = match[1] or None, match[2]
    launch = Launch(others.get("launch", Launch.IF_NEEDED))
    if not process.isdecimal():
        return DeviceSpec(
            udid=udid, bundle_id=process, launch=launch, runs_to_stop=runs, timeout=timeout
        )
    if not 0 < int(process) <= _MAX_PID:
        raise wrong(f"no process id {process}")
    if "launch" in others:
        raise wrong("a process id is of what runs already, and cannot be launched")
    return DeviceSpec(udid=udid, pid=int(process), runs_to_stop=runs, timeout=timeout)


_NOT_DEBUGGABLE = (
    "build it yourself and sign it for development (get-task-allow), as Xcode does with Run; "
    "apps of the App Store, TestFlight and the system cannot be attached to"
)


class DeviceTarget(ClosedWhenLeft):
    """An app's process as a :class:`~machtrace.targets.base.Target`.

    It is attached to as any process of a gdb-remote stub is, and left so: it runs on, also one that
    was launched for this.

    Args:
        spec: a ``device://`` target; see
            :func:`~machtrace.targets.ios.target.parse_device_spec`.
        access: the devices; by default those of the library.
        open_stub: opens the process that debugserver has attached to.

    Raises:
        TargetSpecError: the words name no process of a device.
        MissingExtraError: the extra ``device`` is not installed.
        DeviceError: there is no such device or app, or it refuses.
        ConnectionLostError, RemoteProtocolError: debugserver does not answer, or makes no sense.
    """

    def __init__(
        self,
        spec: str | DeviceSpec,
        access: DeviceAccess | None = None,
        *,
        open_stub: Callable[[RemoteSpec, Connect], GdbRemoteTarget] = GdbRemoteTarget,
    ) -> None:
        self._open_stub = open_stub
        self._spec = parse_device_spec(spec) if isinstance(spec, str) else spec
        self._session = (access or LibraryAccess()).open(self._spec.udid)
        self._waits: int | None = None
        """A process that was launched for a debugger, and has none yet."""
        try:
            pid = self._spec.pid or self._process(self._session)
            self._target = self._attached(self._session, pid)
        except BaseException:
            self._give_up()
            raise

    @property
    def process(self) -> ProcessInfo:
        """Which one; its path is known once its images are."""
        return self._target.process

    @property
    def round_trips(self) -> int:
        """How often debugserver was waited for so far."""
        return self._target.round_trips

    def threads(self) -> tuple[ThreadInfo, ...]:
        """See :meth:`~machtrace.targets.base.Target.threads`."""
        return self._target.threads()

    def snapshot(
        self,
        threads: Collection[ThreadId] | None = None,
        /,
        *,
        stack_limit: int = DEFAULT_STACK_LIMIT,
    ) -> Snapshot:
        """See :meth:`~machtrace.targets.gdbremote.process.GdbRemoteTarget.snapshot`."""
        return self._target.snapshot(threads, stack_limit=stack_limit)

    @property
    def stub(self) -> GdbRemoteTarget:
        """The process as debugserver's, for breakpoints; closed with this target."""
        return self._target

    def close(self) -> None:
        """Resume the process and release the device; a second call does nothing."""
        try:
            self._target.close()
        finally:
            self.release()

    def release(self) -> None:
        """Release the device alone."""
        self._session.close()

    def _give_up(self) -> None:
        """Leave nothing behind that waits for ever."""
        try:
            if self._waits is not None:
                with suppress(MachtraceError):
                    self._session.resume(self._waits)
        finally:
            self._session.close()

    # --- the process ---

    def _process(self, session: DeviceSession) -> int:
        bundle_id = self._spec.bundle_id or ""
        if not session.apps((bundle_id,)):
            raise DeviceError(
                f"app {bundle_id} is not installed on device {session.device.udid}",
                udid=session.device.udid,
                remedy="list the installed apps with machtrace device apps",
            )
        launch = self._spec.launch
        pid = None if launch is Launch.ALWAYS else session.running_pid(bundle_id)
        if pid is None and launch is Launch.NEVER:
            raise DeviceError(
                f"{bundle_id} is not running on device {session.device.udid}",
                udid=session.device.udid,
                remedy="open it there, or remove launch=never",
            )
        if pid is None:
            # What is to run until it stops must not run before somebody sees it stop.
            waits = self._spec.runs_to_stop
            pid = session.launch(
                bundle_id, is_suspended=waits, ends_running=launch is Launch.ALWAYS
            )
            self._waits = pid if waits else None
        return pid

    def _attached(self, session: DeviceSession, pid: int) -> GdbRemoteTarget:
        spec = RemoteSpec(
            given=f"debugserver of device {session.device.udid}",
            pid=pid,
            runs_to_stop=self._spec.runs_to_stop,
            timeout=self._spec.timeout,
        )

        def connect(to: RemoteSpec, timeout: float) -> ByteStream:
            return SocketStream(session.debugserver(), to.place, timeout)

        try:
            return self._open_stub(spec, connect)
        except RemoteProtocolError as error:
            if not error.request.startswith("'vAttach"):
                raise
            raise self._refused(session, pid, error) from error
        except ConnectionLostError as error:
            error.remedy = "keep the device connected and unlocked, and try again"
            raise

    def _refused(self, session: DeviceSession, pid: int, error: RemoteProtocolError) -> DeviceError:
        """Return the error for a refused attach, with the reason if known."""
        process = f"process {pid}"
        bundle_id = self._spec.bundle_id
        if bundle_id is not None:
            process = f"{bundle_id}, process {pid}"
            known = session.apps((bundle_id,))
            if known and not known[0].is_debuggable:
                process += ", which is not signed with get-task-allow"
        return DeviceError(
            f"debugserver cannot attach to {process}: {error}",
            udid=session.device.udid,
            remedy=_NOT_DEBUGGABLE,
        )


def watched_app(
    spec: str, access: DeviceAccess | None = None, *, interrupts: bool = False
) -> WatchedStub:
    """Open an app's process to be watched; closing it releases the device, too.

    Args:
        spec: see :class:`DeviceTarget`; so for the errors.
        access: the devices; by default those of the library.
        interrupts: see :class:`~machtrace.targets.gdbremote.watched.WatchedStub`.
    """
    opened: list[WatchedStub] = []

    def open_stub(remote: RemoteSpec, connect: Connect) -> GdbRemoteTarget:
        opened.append(WatchedStub(remote, connect, interrupts=interrupts))
        return opened[-1]

    device = DeviceTarget(spec, access, open_stub=open_stub)
    opened[-1].on_close = device.release
    return opened[-1]
