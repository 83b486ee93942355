"""``diagnosticMetaData``: the process, its machine and the incident."""

from __future__ import annotations

import re
from dataclasses import dataclass

from machtrace.model.report import (
    LanguageException,
    ReportedException,
    ReportedProcess,
    ReportedSystem,
    ReportedTermination,
)
from machtrace.reports.consume import ObjectReader
from machtrace.reports.exceptions import EXCEPTION_TYPES, SIGNALS

_BUILT = re.compile(r"(?P<name>[^()]*) \((?P<build>[^()]*)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """A diagnostic without its stacks."""

    process: ReportedProcess
    system: ReportedSystem
    exception: ReportedException | None
    termination: ReportedTermination | None
    language_exception: LanguageException | None


def read_metadata(diagnostic: ObjectReader) -> Metadata:
    """Consume the fields; invalid values stay in the diagnostic."""
    if isinstance(diagnostic.left.get("environment"), dict):
        return _of_environment(diagnostic)
    metadata = diagnostic.inner("diagnosticMetaData")
    process = _process(metadata, "appVersion", "appBuildVersion")
    return Metadata(
        process=process,
        system=_system(metadata),
        exception=_exception(metadata),
        termination=_termination(metadata),
        language_exception=_language_exception(metadata, "objectiveCexceptionReason"),
    )


def _of_environment(diagnostic: ObjectReader) -> Metadata:
    """Consume the same from iOS 27's reports, in which the diagnostic itself has the fields."""
    environment = diagnostic.inner("environment")
    process = _process(environment, "applicationVersion", "applicationBuildVersion")
    if isinstance(environment.left.get("osVersion"), dict):
        version = environment.inner("osVersion")
        names = [version.text("platform"), version.text("number")]
        system = ReportedSystem(
            model=environment.text("deviceType"),
            os_name=" ".join(one for one in names if one) or None,
            os_build=version.text("buildNumber"),
        )
    else:
        system = _system(environment)
    return Metadata(
        process=process,
        system=system,
        exception=_exception(diagnostic),
        termination=_termination(diagnostic),
        language_exception=_language_exception(diagnostic, "exceptionReason")
        or _language_exception(diagnostic, "objectiveCExceptionReason"),
    )


def _process(metadata: ObjectReader, version: str, build: str) -> ReportedProcess:
    return ReportedProcess(
        pid=metadata.integer("pid"),
        identifier=metadata.text("bundleIdentifier"),
        version=metadata.text(version),
        build=metadata.text(build),
        code_type=metadata.text("platformArchitecture"),
    )


def _system(metadata: ObjectReader) -> ReportedSystem:
    text = metadata.text("osVersion")
    match = None if text is None else _BUILT.fullmatch(text)
    return ReportedSystem(
        model=metadata.text("deviceType"),
        os_name=text if match is None else match["name"],
        os_build=None if match is None else match["build"],
    )


def _exception(metadata: ObjectReader) -> ReportedException | None:
    number, signal = metadata.left.get("exceptionType"), metadata.left.get("signal")
    name = EXCEPTION_TYPES.get(number) if type(number) is int else None
    signal_name = SIGNALS.get(signal) if type(signal) is int else None
    if name is not None:
        del metadata.left["exceptionType"]
    if signal_name is not None:
        del metadata.left["signal"]
    code = metadata.left.get("exceptionCode")
    codes: tuple[int, ...] = ()
    if isinstance(code, int) and not isinstance(code, bool):
        codes = (code,)
        del metadata.left["exceptionCode"]
    if name is None and signal_name is None and not codes:
        return None
    return ReportedException(type=name, signal=signal_name, raw_codes=codes)


def _termination(metadata: ObjectReader) -> ReportedTermination | None:
    reason = metadata.text("terminationReason")
    return None if reason is None else ReportedTermination(indicator=reason)


def _language_exception(metadata: ObjectReader, key: str) -> LanguageException | None:
    if not isinstance(metadata.left.get(key), dict):
        return None
    inner = ObjectReader.of(metadata.left.pop(key), key, metadata.warnings)
    return LanguageException(
        name=inner.text("exceptionName"),
        reason=inner.text("composedMessage"),
        details=inner.details(),
    )
