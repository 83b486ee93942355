"""What is before the threads: labels with values, and sections of lines."""

from __future__ import annotations

import re

from machtrace.model.json_value import JsonValue
from machtrace.model.reported_process import (
    Incident,
    ReportedException,
    ReportedProcess,
    ReportedSystem,
    ReportedTermination,
)

_LABEL = re.compile(r"(?P<label>[A-Z][A-Za-z0-9 /()-]{1,40}?):(?:[ \t]+(?P<value>.*))?")
_NUMBERED = re.compile(r"(?P<name>.*?) ?\[(?P<number>[0-9]{1,9})\]")
_BUILT = re.compile(r"(?P<name>.*?) \((?P<build>.*)\)")
_NAMESPACE = re.compile(
    r"Namespace (?P<namespace>[^,]+), (?:Code (?P<code>-?\w+)|\[?(?P<bracket>0x[0-9a-fA-F]+)\]?)"
    r" ?(?P<indicator>.*)"
)
_PLAIN = re.compile(
    r"(?P<namespace>[A-Z_][A-Z0-9_ ]*?) (?P<code>[0-9]{1,19})(?: (?P<indicator>.*))?"
)
_CODES = re.compile(r"0x[0-9a-fA-F]{1,16}(?:, 0x[0-9a-fA-F]{1,16})*")
_SECTIONS = {
    "Kernel Triage": "ktriageinfo",
    "VM Region Info": "vmRegionInfo",
}
"""Sections whose key is that of .ips files, where such text is one value."""
_INFORMATION = "Application Specific Information"
_TERMINATION = "Termination Reason"


class Header:
    """Takes lines one by one; what has no field stays under its label."""

    def __init__(self) -> None:
        self._values: dict[str, list[str]] = {}
        self._label = ""

    def read(self, line: str) -> None:
        """A line: a label's, or one that belongs to the label before it."""
        if not line.strip():
            if self._label != _INFORMATION or self._values[_INFORMATION][-1:] == [""]:
                self._label = ""
            else:
                self._values[_INFORMATION].append("")
            return
        match = _LABEL.fullmatch(line.rstrip()) if len(line) < 1 << 16 else None
        if match is None or (self._label == _INFORMATION and match["value"] is not None):
            self._values.setdefault(self._label, []).append(line)
            return
        self._label = match["label"]
        values = self._values.setdefault(self._label, [])
        if match["value"]:
            values.append(match["value"])

    # --- taking ---

    def _take(self, label: str) -> str | None:
        lines = self._values.pop(label, None)
        return None if lines is None else "\n".join(lines)

    def _numbered(self, label: str) -> tuple[str | None, int | None]:
        text = self._take(label)
        match = None if text is None else _NUMBERED.fullmatch(text)
        if match is None:
            return text, None
        return None if match["name"] == "???" else match["name"], int(match["number"])

    def _built(self, label: str) -> tuple[str | None, str | None]:
        text = self._take(label)
        match = None if text is None else _BUILT.fullmatch(text)
        if match is None:
            return text, None
        return None if match["name"] == "???" else match["name"], match["build"]

    # --- fields ---

    def incident(self) -> Incident:
        """Its identifier and time."""
        return Incident(
            id=self._take("Incident Identifier"),
            time=self._take("Date/Time"),
            report_version=self._take("Report Version"),
        )

    def process(self) -> ReportedProcess:
        """The process and its parent."""
        name, pid = self._numbered("Process")
        parent, parent_pid = self._numbered("Parent Process")
        coalition, coalition_id = self._numbered("Coalition")
        version, build = self._built("Version")
        code_type, how = self._built("Code Type")
        if how not in (None, "Native", "Translated"):
            code_type = f"{code_type} ({how})"
        user = self._values.get("User ID", [])
        user_id = None
        if len(user) == 1 and user[0].isdecimal():
            user_id = int(user[0])
            del self._values["User ID"]
        return ReportedProcess(
            name=name,
            pid=pid,
            path=self._take("Path"),
            identifier=self._take("Identifier"),
            version=version,
            build=build,
            code_type=code_type,
            is_translated=True if how == "Translated" else None,
            role=self._take("Role"),
            parent=parent,
            parent_pid=parent_pid,
            coalition=coalition,
            coalition_id=coalition_id,
            user_id=user_id,
            launch_time=self._take("Launch Time"),
        )

    def system(self) -> ReportedSystem:
        """The machine and its system."""
        name, build = self._built("OS Version")
        return ReportedSystem(
            model=self._take("Hardware Model"),
            os_name=name,
            os_build=build,
            release_type=self._take("Release Type"),
            baseband_version=self._take("Baseband Version"),
            crash_reporter_key=self._take("CrashReporter Key"),
        )

    def exception(self) -> ReportedException | None:
        """What the kernel or the runtime said."""
        text = self._take("Exception Type")
        if text is None:
            return None
        match = _BUILT.fullmatch(text)
        codes = self._values.pop("Exception Codes", [])
        subtype = self._take("Exception Subtype")
        if subtype is None and codes and not _CODES.fullmatch(codes[0]) and len(codes) > 1:
            subtype = codes.pop(0)
        joined = "\n".join(codes)
        numbers = joined.split(", ") if _CODES.fullmatch(joined) else []
        return ReportedException(
            type=text if match is None else match["name"],
            signal=None if match is None else match["build"],
            subtype=subtype,
            codes=joined or None,
            raw_codes=tuple(int(one, 16) for one in numbers),
            message=self._take("Exception Message"),
        )

    def termination(self) -> ReportedTermination | None:
        """Who ended the process, and why."""
        lines = self._values.pop(_TERMINATION, None)
        by_process, by_pid = self._numbered("Terminating Process")
        if lines is None and by_process is None and by_pid is None:
            return None
        first, *reasons = lines or [""]
        match = _NAMESPACE.fullmatch(first) or _PLAIN.fullmatch(first)
        if match is None:
            return ReportedTermination(
                indicator=first or None,
                reasons=tuple(reasons),
                by_process=by_process,
                by_pid=by_pid,
            )
        groups = match.groupdict()
        code = groups.get("bracket") or groups["code"]
        return ReportedTermination(
            namespace=groups["namespace"],
            code=int(code, 0) if code.lstrip("-").isalnum() and code[:1].isdecimal() else None,
            indicator=groups["indicator"] or None,
            reasons=tuple(reasons),
            by_process=by_process,
            by_pid=by_pid,
        )

    def application_information(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """What images said; the text does not say which ones."""
        lines = self._values.pop(_INFORMATION, [])
        while lines and not lines[-1]:
            lines.pop()
        return (("", tuple(lines)),) if lines else ()

    @property
    def crashed_thread(self) -> int | None:
        """Which thread the header names."""
        for label in ("Triggered by Thread", "Crashed Thread"):
            text = " ".join(self._values.get(label, [])).split(" ", 1)[0]
            if text.isdecimal():
                return int(text)
        return None

    def details(self) -> dict[str, JsonValue]:
        """What has no field, by label. Ask for it last."""
        found: dict[str, JsonValue] = {}
        for label, lines in self._values.items():
            key = _SECTIONS.get(label, label)
            found[key] = "\n".join(lines)
        for label in ("Triggered by Thread", "Crashed Thread"):
            text = found.get(label)
            if isinstance(text, str) and text.isdecimal():
                del found[label]
        return found
