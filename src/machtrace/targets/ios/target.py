"""A process of an iOS device: started or found there, and copied through its debugserver."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from machtrace.errors import (
    ConnectionLostError,
    DeviceError,
    MachtraceError,
    RemoteProtocolError,
)
from machtrace.model.snapshot import ProcessInfo, Snapshot
from machtrace.model.thread import ThreadId, ThreadInfo
from machtrace.targets.base import DEFAULT_STACK_LIMIT, ClosedWhenLeft
from machtrace.targets.ios.access import DeviceAccess, DeviceSession
from machtrace.targets.ios.session import LibraryAccess
from machtrace.targets.ios.device_spec import DeviceSpec, Launch, parse_device_spec
from machtrace.targets.gdbremote.process import GdbRemoteTarget
from machtrace.targets.gdbremote.spec import RemoteSpec
from machtrace.targets.gdbremote.stream import ByteStream, SocketStream

_NOT_DEBUGGABLE = (
    "build it yourself and sign it for development (get-task-allow), as Xcode does with Run; "
    "apps of the App Store, TestFlight and the system cannot be attached to"
)


class DeviceTarget(ClosedWhenLeft):
    """An app's process as a :class:`~machtrace.targets.base.Target`.

    It is attached to as any process of a gdb-remote stub is, and left so: it runs on, also one that
    was launched for this.

    Args:
        spec: ``device://UDID/bundle-id`` and its kin; see
            :func:`~machtrace.targets.ios.device_spec.parse_device_spec`.
        access: the devices; by default those of the library.

    Raises:
        TargetSpecError: the words name no process of a device.
        MissingExtraError: the extra ``device`` is not installed.
        DeviceError: there is no such device or app, or it refuses.
        ConnectionLostError, RemoteProtocolError: debugserver does not answer, or makes no sense.
    """

    def __init__(self, spec: str | DeviceSpec, access: DeviceAccess | None = None) -> None:
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

    def close(self) -> None:
        """Let the process run, and let go of the device; calling it twice does nothing more."""
        try:
            self._target.close()
        finally:
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
                f"no app {bundle_id} is installed on device {session.device.udid}",
                udid=session.device.udid,
                remedy="see machtrace device apps for the bundle ids of those that are",
            )
        launch = self._spec.launch
        pid = None if launch is Launch.ALWAYS else session.running_pid(bundle_id)
        if pid is None and launch is Launch.NEVER:
            raise DeviceError(
                f"{bundle_id} does not run on device {session.device.udid}",
                udid=session.device.udid,
                remedy="open it there, or leave out launch=never",
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
            return GdbRemoteTarget(spec, connect)
        except RemoteProtocolError as error:
            if not error.asked.startswith("'vAttach"):
                raise
            raise self._refused(session, pid, error) from error
        except ConnectionLostError as error:
            error.remedy = "keep the device connected and unlocked, and try again"
            raise

    def _refused(self, session: DeviceSession, pid: int, error: RemoteProtocolError) -> DeviceError:
        """Why debugserver may not attach, as far as can be known."""
        what = f"process {pid}"
        bundle_id = self._spec.bundle_id
        if bundle_id is not None:
            what = f"{bundle_id}, process {pid}"
            known = session.apps((bundle_id,))
            if known and not known[0].is_debuggable:
                what += ", which is not signed with get-task-allow"
        return DeviceError(
            f"debugserver cannot attach to {what}: {error}",
            udid=session.device.udid,
            remedy=_NOT_DEBUGGABLE,
        )
