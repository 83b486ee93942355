"""Spools of a fleet: every phone runs every build of an app, whose stacks are of real binaries.

`python -m tests.audit.observed.fleet FOLDER [PHONES [BUILDS [STACKS]]]` writes FOLDER/phones, with
a folder for each phone, and FOLDER/apps with the builds. It prints what a spool has in bytes.

The builds are one program, linked in another order with another build-id. The libraries are those
that this process has loaded. Stacks of a build are a walk over its functions that is the same for
all builds: most begin as an earlier one does. A spool has a choice of them, each with its events,
and cells for the calls of frequent ones.
"""

from __future__ import annotations

import hashlib
import re
import struct
import subprocess
import sys
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from machtrace.audit.rules import RuleKind, load_rules
from tests.agent.build import compiler
from tests.support.writers import spool as writer

BITS, RULES, HEAD = 20, 512, 256
DEPTH, FUNCTIONS, FILES = 35, 1200, 6
POOL = 2
"""Stacks of all phones, in those of one."""
DAY = 86_400_000_000_000
ABSENT, GIVEN = 1, 2
CHAINS = 4
"""New stacks that the agent writes at once."""
CELLS = 0.1
"""The part of stacks whose calls are in cells, too."""


class Binary(NamedTuple):
    """A file, with its functions in the order of their names."""

    path: Path
    identifier: bytes
    starts: Any
    sizes: Any


class Size(NamedTuple):
    """The sizes of a spool, or of all, in bytes and by number."""

    stacks: int
    repeats: int
    frames: int
    nodes: int
    node_bytes: int
    repeat_bytes: int


def binary(path, *, dynamic=True, prefix=""):
    """Return the functions that nm lists."""
    words = ["nm", *(["-D"] if dynamic else []), "--defined-only", "-S", str(path)]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    rows = sorted(
        (row[3], int(row[0], 16), int(row[1], 16))
        for row in map(str.split, text.splitlines())
        if len(row) == 4 and row[2] in "TtW" and int(row[1], 16) > 8 and row[3].startswith(prefix)
    )
    notes = subprocess.run(["readelf", "-n", str(path)], capture_output=True, text=True, check=True)
    match = re.search(r"Build ID: ([0-9a-f]+)", notes.stdout)
    return Binary(
        path,
        bytes.fromhex(match[1]) if match else b"",
        np.array([row[1] for row in rows], np.uint64),
        np.array([row[2] for row in rows], np.uint64),
    )


def libraries():
    """Return the shared objects of this process that have functions."""
    text = Path("/proc/self/maps").read_text()
    paths = sorted({line.split()[-1] for line in text.splitlines() if ".so" in line})
    return [each for each in map(binary, map(Path, paths)) if len(each.starts) > 80]


def builds(folder, count):
    """Link the builds of an app."""
    folder.mkdir(parents=True)
    objects = []
    for part in range(FILES):
        source = folder / f"part{part}.c"
        source.write_text(
            "".join(
                f"int app_{part}_{at}(int n) {{ return n * {at + 3} + n / {at + 7}; }}\n"
                for at in range(FUNCTIONS // FILES)
            )
        )
        objects.append(folder / f"part{part}.o")
        subprocess.run([compiler(), "-O1", "-c", str(source), "-o", str(objects[-1])], check=True)
        source.unlink()
    for number in range(count):
        main = folder / "main.c"
        main.write_text(
            f'char padding[{16 * number + 1}] __attribute__((section(".text"))) = {{1}};\n'
            "int main(void) { return 0; }\n"
        )
        at = number % FILES
        output = folder / f"build-{number:03}" / "Demo"
        output.parent.mkdir()
        identifier = hashlib.sha1(b"%d" % number, usedforsecurity=False).hexdigest()
        words = [main, *objects[at:], *objects[:at], f"-Wl,--build-id=0x{identifier}", "-w"]
        subprocess.run([compiler(), *map(str, words), "-o", str(output)], check=True)
        yield binary(output, dynamic=False, prefix="app_")
    for file in (*objects, main):
        file.unlink()


class Model:
    """Stacks of all builds: nodes with an image, a function and a place in it, callers first."""

    def __init__(self, sizes, is_system, stacks, random):
        """Walk over images with these numbers of functions; the first is the program."""
        rows = [(0, 0, 0, 0)]
        depth = [0]
        system = np.flatnonzero(is_system)
        others = np.flatnonzero(~is_system)
        self.ends = []
        for _ in range(stacks):
            new = int(random.geometric(1 / 8))
            length = int(np.clip(random.normal(DEPTH, 8), 4, 90))
            node = self.ends[int(random.integers(len(self.ends)))] if self.ends else 0
            while depth[node] > max(0, length - new):
                node = rows[node][0]
            image = rows[node][1]
            for _ in range(max(new, length - depth[node])):
                if random.random() < 0.2:
                    some = system if random.random() < 0.3 else others
                    image = int(some[random.integers(len(some))])
                rows.append((node, image, int(random.integers(sizes[image])), random.random()))
                depth.append(depth[node] + 1)
                node = len(rows) - 1
            self.ends.append(node)
        parent, image, function, place = zip(*rows, strict=True)
        self.parent, self.image = np.array(parent), np.array(image)
        self.function, self.place = np.array(function), np.array(place)
        self.depth, self.ends = np.array(depth), np.array(self.ends)

    def offsets(self, images):
        """Return the return addresses of all nodes, from their images' starts."""
        offset = np.zeros(len(self.parent), np.uint64)
        for number, image in enumerate(images):
            rows = self.image == number
            functions = self.function[rows]
            sizes = image.sizes[functions].astype(np.float64)
            offset[rows] = (
                image.starts[functions] + 1 + (self.place[rows] * (sizes - 2)).astype(int)
            )
        return offset

    def selected(self, ends):
        """Return the nodes of some stacks, callers first."""
        used = np.zeros(len(self.parent), np.bool_)
        nodes = np.unique(ends)
        while len(nodes):
            used[nodes] = True
            nodes = np.unique(self.parent[nodes])
            nodes = nodes[~used[nodes]]
        used[0] = False
        return np.flatnonzero(used)


def numbers_of(model, nodes, addresses):
    """Return the number and the distance of each node, as docs/agent-spool.md states them."""
    mask, half = np.uint64((1 << BITS) - 1), np.uint64((BITS + 1) // 2)
    spread = (addresses ^ addresses >> np.uint64(32)) * np.uint64(0x9E3779B97F4A7C15)
    spread >>= np.uint64(64 - BITS)
    number = np.zeros(len(model.parent), np.uint64)
    distance = np.zeros(len(model.parent), np.uint64)
    taken = {0}
    order = nodes[np.argsort(model.depth[nodes], kind="stable")]
    bounds = np.flatnonzero(np.diff(model.depth[order], prepend=-1))
    for begin, end in zip(bounds, [*bounds[1:], len(order)], strict=True):
        rows = order[begin:end]
        scattered = number[model.parent[rows]] * np.uint64(0x9E3779B1) & mask
        scattered = (scattered ^ scattered >> half) * np.uint64(0x9E3779B1)
        home = scattered + spread[rows] & mask
        for row, slot in zip(rows.tolist(), home.tolist(), strict=True):
            steps = 0
            while (slot + steps) % (1 << BITS) in taken:
                steps += 1
            taken.add((slot + steps) % (1 << BITS))
            distance[row] = steps
        number[rows] = home + distance[rows] & mask
    return number, distance


def varints(values):
    """Return the bytes of numbers, and where each one begins."""
    sizes = np.ones(len(values), np.int64)
    for place in range(1, 10):
        sizes += (values >> np.uint64(7 * place)) > 0
    starts = np.cumsum(sizes) - sizes
    data = np.zeros(int(sizes.sum()), np.uint8)
    for place in range(int(sizes.max())):
        rows = np.flatnonzero(sizes > place)
        digits = (values[rows] >> np.uint64(7 * place) & np.uint64(127)).astype(np.uint8)
        data[starts[rows] + place] = digits | (sizes[rows] > place + 1).astype(np.uint8) << 7
    return data.tobytes(), np.append(starts, len(data))


def node_records(model, nodes, number, distance, image, offset):
    """Return the payloads of the nodes' records: a chain for each stack."""
    parent = model.parent[nodes]
    is_head = np.ones(len(nodes), np.bool_)
    is_head[1:] = parent[1:] != nodes[:-1]
    heads = np.flatnonzero(is_head)
    is_first = np.zeros(len(nodes), np.bool_)
    is_first[heads[::CHAINS]] = True
    changed = is_first.copy()
    changed[1:] |= image[nodes][1:] != image[nodes][:-1]
    count = np.diff(np.append(heads, len(nodes)))
    widths = 2 + changed + 2 * is_head
    starts = np.cumsum(widths) - widths
    values = np.zeros(int(widths.sum()), np.uint64)
    values[starts[heads]] = number[parent[heads]]
    values[starts[heads] + 1] = count
    at = starts + 2 * is_head
    values[at] = distance[nodes]
    values[at + 1] = offset[nodes] << np.uint64(1) | changed.astype(np.uint64)
    values[at[changed] + 2] = image[nodes][changed] + 1
    data, places = varints(values)
    bounds = [*places[starts[is_first]].tolist(), len(data)]
    return [data[begin:end] for begin, end in pairwise(bounds)]


def events_of(ends, number, random):
    """Return events, each stack's first and some repeats, and cells."""
    again = random.choice(ends, len(ends) // 4)
    rows = np.concatenate((ends, again))
    random.shuffle(rows)
    events = np.zeros(len(rows), writer_event())
    events["time"] = np.sort(random.integers(0, 60 * 10**9, len(rows)).astype(np.uint64)) + 10**9
    events["stack"], events["thread"], events["calls"] = number[rows], 1, 1
    state = np.where(np.arange(len(rows)) < len(rows) // 50, ABSENT, GIVEN)
    rule = rows % 12
    events["rule"] = rule | state << 9
    events["flags"] = 1
    counted = random.choice(ends, int(len(ends) * CELLS), replace=False)
    cells = np.zeros((len(counted), 2), np.uint64)
    keys = np.uint64(1 << 63) | (counted % 12 | GIVEN << 9).astype(np.uint64) << np.uint64(32)
    cells[:, 0] = keys | number[counted]
    cells[:, 1] = random.integers(1, 40, len(counted))
    return events, cells


def writer_event():
    """Return the type of an event."""
    return np.dtype(
        [("time", "<u8"), ("stack", "<u4"), ("thread", "<u4"), ("rule", "<u2"), ("depth", "u1"),
         ("flags", "u1"), ("calls", "<u4")]
    )  # fmt: skip


def contents(log, events, cells, started, run):
    """Return the bytes of a spool."""
    text = writer.sequence(log)
    segment = struct.pack("<QQ", 1, 0) + writer.sequence(
        (writer.EVENTS, struct.pack("<QII", at, len(events[at : at + 512]), 0)
         + events[at : at + 512].tobytes())
        for at in range(0, len(events), 512)
    )  # fmt: skip
    text, segment = text + bytes(8), segment + bytes(8)
    cells_at = HEAD + len(text)
    segments_at = cells_at + 16 * len(cells)
    calls_at = segments_at + len(segment)
    sums = np.zeros(RULES, np.uint64)
    np.add.at(sums, events["rule"] & 511, events["calls"])
    np.add.at(sums, cells[:, 0] >> np.uint64(32) & np.uint64(511), cells[:, 1])
    checked = struct.pack(
        "<12QIIII16s",
        *(calls_at + 16 * RULES, HEAD, len(text), cells_at, len(cells)),
        *(segments_at, len(segment), 1, calls_at, calls_at + 8 * RULES, started, 10**9),
        *(455, 62, BITS, RULES, run),
    )
    head = b"mtspool\n" + struct.pack("<II", 1, zlib.crc32(checked)) + checked
    head += struct.pack("<13Q", 2, len(events), 0, *[0] * 10)
    parts = (head.ljust(HEAD, b"\0"), text, cells.tobytes(), segment, sums.tobytes())
    return b"".join((*parts, bytes(8 * RULES)))


def one_spool(model, images, offset, phone, build, stacks):
    """Return a spool of a phone, and what it has."""
    random = np.random.default_rng((phone, build))
    ends = np.sort(random.choice(model.ends, stacks, replace=False))
    nodes = model.selected(ends)
    base = np.uint64(0x7F00_0000_0000 + int(random.integers(1, 1 << 20)) * 4096)
    starts = base + np.arange(len(images), dtype=np.uint64) * np.uint64(1 << 28)
    number, distance = numbers_of(model, nodes, offset + starts[model.image])
    payloads = node_records(model, nodes, number, distance, model.image, offset)
    log = [(writer.RULE, writer.rule(at, name)) for at, name in enumerate(watched())]
    log += [
        (writer.IMAGE, writer.image(
            at + 1, int(starts[at]), 1 << 27, str(each.path), each.identifier, int(at == 0)))
        for at, each in enumerate(images)
    ]  # fmt: skip
    log += [(writer.NODES, payload) for payload in payloads]
    events, cells = events_of(ends, number, random)
    run = hashlib.sha256(b"%d %d" % (phone, build)).digest()[:16]
    size = Size(
        stacks=stacks,
        repeats=len(events) - stacks + int(cells[:, 1].sum()),
        frames=int(model.depth[ends].sum()),
        nodes=len(nodes),
        node_bytes=sum(16 + (len(payload) + 7 & ~7) for payload in payloads),
        repeat_bytes=24 * (len(events) - stacks) + 16 * len(cells),
    )
    return contents(log, events, cells, writer.STARTED + build * DAY, run), size


def watched():
    """Return the functions of the first rules."""
    return [rule.watch for rule in load_rules("privacy").rules if rule.kind is RuleKind.C][:12]


def fleet(folder, phones, count, stacks):
    """Write the spools; return the sums of what they have."""
    others = libraries()
    is_system = [False] + [str(other.path).startswith(("/usr/lib", "/lib")) for other in others]
    sizes = [FUNCTIONS, *(len(other.starts) for other in others)]
    model = Model(sizes, np.array(is_system), POOL * stacks, np.random.default_rng(1))
    total = np.zeros(len(Size._fields), np.int64)
    for build, app in enumerate(builds(folder / "apps", count)):
        images = [app, *others]
        offset = model.offsets(images)
        for phone in range(phones):
            data, size = one_spool(model, images, offset, phone, build, stacks)
            place = folder / "phones" / f"phone-{phone:03}"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"build-{build:03}.spool").write_bytes(data)
            total += size
    return Size._make(total.tolist())


def main(folder, *counts):
    """Write a fleet, and print what its spools have."""
    size = fleet(Path(folder), *map(int, (*counts, *(100, 100, 1000)[len(counts) :])))
    each = size.frames / size.stacks
    lines = (
        f"{size.stacks:,} stacks, {size.frames:,} frames ({each:.1f} each), {size.nodes:,} nodes",
        f"{size.node_bytes / size.stacks:.1f} bytes for a new stack, and 24 for its event",
        f"{size.repeat_bytes / size.repeats:.1f} bytes for each of {size.repeats:,} repeats",
    )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
