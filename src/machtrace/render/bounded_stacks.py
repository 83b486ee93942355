"""Stacks for formats that write each of them out, however much of it others have too.

A tree that is n calls deep, and whose stacks end at every call, is n times n calls there. What was
recorded, or made to be so, is 50,000 deep: gigabytes of a file of a megabyte.
"""

from __future__ import annotations

from array import array
from dataclasses import replace

from machtrace.model.profile import OUTERMOST, Profile

DEEPEST = 1024
"""Frames, outermost first, that are kept of a stack where deep ones are too many."""
ROOM = 1 << 23
"""Frames that all stacks deeper than that may have together."""


def bounded(profile: Profile, room: int = ROOM) -> Profile:
    """The profile itself; with its deep stacks cut where they come to more than ``room`` frames.

    They end at frame :data:`DEEPEST` then, counted from the outermost one. The formats firefox and
    html, which say once what stacks share, have all of them.
    """
    depths, kept = array("i"), array("i")
    for row, caller in enumerate(profile.stacks.callers):
        depth = 1 if caller == OUTERMOST else depths[caller] + 1
        depths.append(depth)
        kept.append(row if depth <= DEEPEST else kept[caller])
    samples = profile.samples
    deep = sum(depths[row] for row in samples.stacks if row != OUTERMOST and depths[row] > DEEPEST)
    if deep <= room:
        return profile
    stacks = array("i", (row if row == OUTERMOST else kept[row] for row in samples.stacks))
    return replace(profile, samples=replace(samples, stacks=stacks))
