"""The counts of a server, in the text format of Prometheus."""

from __future__ import annotations

from typing import NamedTuple

from machtrace.server.service import Service


class _Metric(NamedTuple):
    name: str
    kind: str
    summary: str
    value: float


def metrics_text(service: Service) -> str:
    """Return all counts."""
    progress = service.writer.progress
    counts = (
        ("received", "Bodies of reports that were acknowledged.", progress.received),
        ("received_bytes", "Bytes of them, decompressed.", progress.received_bytes),
        ("commits", "Times that the log was written to the disk.", progress.commits),
        ("reports", "Reports that were added to segments.", progress.reports),
        ("repeated", "Reports that were there already.", progress.repeated),
        ("quarantined", "Bodies that could not be read.", progress.quarantined),
        ("unscrubbed", "Requests that took too long to scrub.", progress.unscrubbed),
        ("named_frames", "Frames that were named by symbols.", progress.named),
        ("reader_restarts", "Processes of readers that ended early.", progress.restarts),
        ("failures", "Segments or names that could not be made.", progress.failures),
    )
    levels = (
        ("unread_bytes", "Bytes of the log in no segment yet.", progress.unread_bytes),
        ("memory_bytes", "Bytes of bodies that are being received.", service.memory.used),
        ("segments", "Segments.", progress.segments),
    )
    rows = [_Metric(f"{name}_total", "counter", *rest) for name, *rest in counts]  # type: ignore[arg-type]
    rows += [_Metric(name, "gauge", *rest) for name, *rest in levels]  # type: ignore[arg-type]
    lines = [
        line
        for row in rows
        for line in (
            f"# HELP machtrace_{row.name} {row.summary}",
            f"# TYPE machtrace_{row.name} {row.kind}",
            f"machtrace_{row.name} {row.value}",
        )
    ]
    lines += [
        "# HELP machtrace_requests_total Answers, by endpoint and status.",
        "# TYPE machtrace_requests_total counter",
    ]
    lines += [
        f'machtrace_requests_total{{path="{path}",status="{status}"}} {count}'
        for (path, status), count in sorted(service.answers.items())
    ]
    return "\n".join(lines) + "\n"
