"""Small pictures of counts over time."""

from __future__ import annotations

from collections.abc import Sequence

BUCKETS = 28
_WIDTH, _HEIGHT = 112, 22


def sparkline(counts: Sequence[int], label: str) -> str:
    """Return bars as SVG, whose label states them in words."""
    most = max(counts, default=0)
    if not most:
        return ""
    step = _WIDTH / len(counts)
    bars = []
    for at, count in enumerate(counts):
        height = max(round(count / most * (_HEIGHT - 1), 1), 1.5) if count else 0
        if height:
            bars.append(f"M{at * step:.1f} {_HEIGHT}v-{height}h{step - 1:.1f}v{height}z")
    return (
        f'<svg class="trend" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'role="img" aria-label="{label}"><path d="{"".join(bars)}"/></svg>'
    )
