"""A program of synthetic images, whose call chains are recorded as a hook would record them.

A chain is what really happens, jumps included. The recorded stack has a frame for each function
that waits for its callee to return; a function that jumps has none. The truth of a scenario is
written beside its chain and never computed.
"""

import random
from dataclasses import dataclass, field

from machtrace.audit.trail.calls import Image, ImageRole, Process, Trail, calls_of
from machtrace.audit.trail.code_facts import Callee, CodeFacts
from machtrace.audit.trail.libraries import (
    CodeMap,
    Evidence,
    Function,
    Library,
    code_ranges,
    with_neighbours,
)
from machtrace.audit.trail.stacks import tree_of

APP_IMAGE = "App"
STEP = 0x400
"""Bytes of a function."""
IMAGES = {
    "App": ImageRole.APP,
    "AppCore": ImageRole.APP,
    "Gamma": ImageRole.LIBRARY,
    "Delta": ImageRole.LIBRARY,
    "Net": ImageRole.LIBRARY,
    "Store": ImageRole.LIBRARY,
    "Executor": ImageRole.LIBRARY,
    "UIKitCore": ImageRole.SYSTEM,
    "Foundation": ImageRole.SYSTEM,
    "CoreFoundation": ImageRole.SYSTEM,
    "libdispatch": ImageRole.SYSTEM,
    "libsystem_pthread": ImageRole.SYSTEM,
    "libswift_Concurrency": ImageRole.SYSTEM,
    "dyld": ImageRole.SYSTEM,
    "Unnamed": ImageRole.SYSTEM,
}
STATIC = ("App", "Alpha", "Beta", "Nowhere", "Util")
"""Libraries in the main image; ``Util`` passes through, and nothing is known of ``Nowhere``."""
DEBUG, MAP, NAMES = "debug information", "a link map", "names of methods"
KNOWN_BY = {
    DEBUG: Evidence.DEBUG_INFORMATION,
    MAP: Evidence.LINK_MAP,
    NAMES: Evidence.CLASS_PREFIX,
}
AREA = 0x400000
"""Bytes of a library in the main image: linkers place its functions together."""


@dataclass(frozen=True)
class Step:
    """A function of a chain, and how it reaches the next one."""

    function: Function | None
    how: str = "call"
    selector: str = ""


@dataclass
class Expected:
    """The truth of a call."""

    asker: str | None
    owner: str | None
    flags: int = 0


@dataclass
class Program:
    """Functions are added as chains need them; :meth:`trail` is what a hook recorded."""

    seed: int = 1
    _functions: dict[str, dict[int, tuple[str, str, str]]] = field(default_factory=dict)
    """By image and offset: library, name, and for inlined code the library around it."""

    def __post_init__(self):
        self.random = random.Random(self.seed)  # noqa: S311 - the same program each time
        self.images = [
            Image(
                path=_path(name, role),
                uuid="" if name == "Unnamed" else f"{self.random.getrandbits(128):032X}",
                role=role,
            )
            for name, role in IMAGES.items()
        ]
        self.index = {name: number for number, name in enumerate(IMAGES)}
        self._next = {
            **dict.fromkeys(IMAGES, 0x4000),
            **{name: 0x4000 + number * AREA for number, name in enumerate(STATIC)},
        }
        self.known = {}
        self.jumps = {}
        self.sites = {}
        self.calls = {}
        self.methods = {}
        self.replacements = {}
        self.stacks, self.rows, self.expected, self.scenario = [], [], [], []
        self.rules = []

    def key(self, image):
        """Return the identity of an image."""
        return self.images[self.index[image]].key

    def function(self, library, name="", *, image=None, within=""):
        """Return a function of a library: the one of this name, or a new one."""
        if name and (library, name) in self.known:
            return self.known[library, name]
        image = image or (library if library in IMAGES else APP_IMAGE)
        area = library if image == APP_IMAGE else image
        offset = self._next[area]
        self._next[area] += STEP
        self._functions.setdefault(image, {})[offset] = (library, name, within)
        function = Function(self.key(image), offset)
        if name:
            self.known[library, name] = function
        return function

    def any_function(self, library):
        """Return one of a few functions of a library."""
        return self.function(library, f"-[{library}Thing method{self.random.randrange(12)}]")

    def archive(self, library, count):
        """Add functions of one archive, the inner ones of which are stripped of all evidence."""
        functions = [self.function(library) for _ in range(count)]
        image = self._functions[APP_IMAGE]
        for function in functions[1:-1]:
            image[function.offset] = ("", "", "")
        return functions[1:-1]

    def record(self, scenario, chain, watch, expected, *, flags=0, mark=None):
        """Record a chain: its steps are written from the outermost function inward."""
        frames = []
        targets = [*(step.function for step in chain[1:]), None][: len(chain)]
        for step, target in zip(chain, targets, strict=True):
            callee = self._callee(step, target, watch)
            if step.how.endswith("jump"):
                known = self.jumps.setdefault(step.function, [])
                if callee not in known:
                    known.append(callee)
                continue
            if step.function is None:  # code in no image
                frames.append((-1, 0x1_0000_0000 + self.random.randrange(1 << 20) * 4))
                continue
            site = self.sites.setdefault((step.function, callee), len(self.sites) % 200)
            place = Function(step.function.image, step.function.offset + 8 + site * 4)
            while self.calls.get(place, callee) != callee:
                place = Function(place.image, place.offset + 4)
                if place.offset >= step.function.offset + STEP:
                    raise ValueError("too many call sites in a function")
            self.calls[place] = callee
            frames.append((self._image_of(place), place.offset))
        stack = frames[::-1]
        if mark is not None:
            stack.append((-1, mark))
        if watch not in self.rules:
            self.rules.append(watch)
        self.stacks.append(stack)
        self.rows.append((self.rules.index(watch), flags))
        self.expected.append(expected)
        self.scenario.append(scenario)

    def _image_of(self, function):
        return next(i for i, image in enumerate(self.images) if image.key == function.image)

    def _callee(self, step, target, watch):
        if step.how.startswith("pointer"):
            return Callee()
        if step.how.startswith("message"):
            return Callee(selector=step.selector)
        # The instruction names what is watched; the runtime leads it to the replacement.
        is_watched = target is None or target in self.replacements.get(watch, ())
        if is_watched:
            return Callee(watch=watch)
        is_system = self._image_of(target) >= self.index["UIKitCore"]
        return Callee(is_system=True) if is_system else Callee(function=target)

    def code(self, known_by=DEBUG):
        """Return whose code each address is, by some evidence, and the facts that a scan finds."""
        listed = [
            Library(name="App", role=ImageRole.APP),
            Library(name="Alpha"),
            Library(name="Beta"),
            Library(name="Util", passes_through=True),
            Library(name="Net", passes_through=True),
            Library(name="Store", passes_through=True),
            Library(name="Executor", runs_callbacks=True),
        ]
        known = {library.name for library in listed}
        listed += [
            Library(name=name, role=role)
            for name, role in IMAGES.items()
            if role is not ImageRole.SYSTEM and name not in known
        ]
        numbers = {library.name: number for number, library in enumerate(listed)}
        ranges = {}
        for image, functions in self._functions.items():
            if image == "Unnamed":
                continue
            rows = sorted(functions.items())
            if known_by == NAMES and image == APP_IMAGE:
                # Names of methods are metadata, which stripping leaves.
                rows = [(at, row if row[1].startswith("-[") else ("", "", "")) for at, row in rows]
            made = code_ranges(
                [offset for offset, _ in rows],
                [numbers.get(library, -1) for _, (library, _, _) in rows],
                evidence=[
                    KNOWN_BY[known_by] if library else Evidence.NONE for _, (library, _, _) in rows
                ],
                names=[
                    name if known_by == DEBUG or IMAGES[image] is ImageRole.SYSTEM else ""
                    for _, (_, name, _) in rows
                ],
                within=[numbers.get(within, -1) for _, (_, _, within) in rows],
            )
            if image == APP_IMAGE:
                ranges[self.key(image)] = with_neighbours(made)
            else:
                ranges[self.key(image)] = made
        facts = CodeFacts(
            # A call by a pointer is a fact of the instruction, too.
            calls=self.calls,
            jumps={function: tuple(callees) for function, callees in self.jumps.items()},
            methods=self.methods,
            replacements={watch: frozenset(each) for watch, each in self.replacements.items()},
        )
        return CodeMap(self.images, listed, ranges=ranges), facts

    def trail(self):
        """Return what was recorded."""
        tree, nodes = tree_of(self.stacks)
        return Trail(
            images=tuple(self.images),
            stacks=tree,
            rules=tuple(self.rules),
            processes=(Process(run="one"),),
            calls=calls_of(
                stack=nodes,
                rule=[rule for rule, _ in self.rows],
                flags=[flags for _, flags in self.rows],
                time=range(len(self.rows)),
            ),
        )


def _path(name, role):
    if role is ImageRole.SYSTEM:
        return f"/System/Library/Frameworks/{name}.framework/{name}"
    bundle = "/private/var/containers/Bundle/Application/X/App.app"
    return f"{bundle}/App" if name == "App" else f"{bundle}/Frameworks/{name}.framework/{name}"
