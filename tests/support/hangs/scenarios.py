"""Scenarios: what a program does, step by step, determined by a seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

THRESHOLD_MS = 100
"""T: the threshold of the watcher."""
MIN_HANG_MS = 125
"""1.25 T: hangs from here on are to be found."""
_JUST_A_HANG_MS = MIN_HANG_MS + 4
MAX_QUIET_MS = 75
"""0.75 T: tasks up to here are not to be reported."""
UNTIL_RELEASED = 0
"""The planned duration of hangs that last until they are reported."""
BY_RUNNER = "@"
"""The first character of actions that the runner does to the program."""


@dataclass(frozen=True, slots=True)
class Action:
    """Something that a callback does."""

    name: str
    culprit: str
    """The function that has the time."""
    waits: bool = True
    """Whether it waits; otherwise it needs the processor."""
    nested: bool = False
    """Whether it is a loop in a callback: to be named as such, if it is reported."""
    inside: tuple[str, ...] = ()
    """Library functions of the same language in which the time is spent, below the culprit."""
    quiet_ms: tuple[int, int] = (5, MAX_QUIET_MS)
    """The durations that are no hangs."""


def _c_actions() -> tuple[Action, ...]:
    waits = {
        "sleep": "sleep_in_callback",
        "read": "read_config",
        "recv": "receive_reply",
        "connect": "connect_to_server",
        "flock": "lock_file_in_callback",
        "mutex": "take_mutex",
        "rwlock": "take_rwlock",
        "condition": "wait_for_condition",
        "semaphore": "wait_for_semaphore",
        "join": "join_worker",
        "child": "run_child",
        "vfork": "wait_in_vfork",
        "direct": "write_direct",
    }
    runs = {
        "burn": "burn_in_one",
        "leaves": "loop_over_leaves",
        "a-then-b": "costly_a",
        "a-then-more-b": "costly_a",
        "pages": "touch_pages",
    }
    inside = {"sleep": ("sleep_ns",)}
    return tuple(
        Action(name, culprit, inside=inside.get(name, ())) for name, culprit in waits.items()
    ) + tuple(Action(name, culprit, waits=False) for name, culprit in runs.items())


_SUBPROCESS = ("run", "wait", "_wait", "_try_wait", "communicate", "_communicate", "select", "poll")

HANGS: dict[str, tuple[Action, ...]] = {
    "c": _c_actions(),
    "python": (
        Action("sleep", "sleep_in_callback"),
        Action("read", "read_config"),
        Action("recv", "receive_reply"),
        Action("flock", "lock_file_in_callback"),
        Action("lock", "take_lock"),
        Action("rlock", "take_rlock"),
        Action("join", "join_worker", inside=("join", "_wait_for_tstate_lock")),
        Action("child", "run_child", inside=_SUBPROCESS),
        Action("child-output", "read_child", nested=True, inside=_SUBPROCESS),
        Action("burn", "burn_in_one", waits=False),
        Action("leaves", "loop_over_leaves", waits=False),
        Action("a-then-b", "costly_a", waits=False),
        Action("a-then-more-b", "costly_a", waits=False),
        Action("zlib", "compress_text", waits=False, quiet_ms=(1, 1)),
        Action("json", "parse_document", waits=False, inside=("loads", "decode", "raw_decode")),
        Action("regex", "match_pattern", waits=False, quiet_ms=(1, 1)),
        Action("gil-burn", "call_keep_gil", waits=False),
        Action("gil-sleep", "call_sleep_with_gil"),
        Action("c-burn", "call_without_gil", waits=False),
        Action("gil-wait", "keep", inside=("wait_for_gil", "start", "wait")),
        Action(
            "nested",
            "run_nested_loop",
            nested=True,
            inside=("run_until_complete", "run_forever", "_run_once", "select"),
        ),
    ),
    "node": (
        Action("burn", "burn_in_one", waits=False),
        Action("a-then-b", "costly_a", waits=False),
        Action("sleep", "wait_in_atomics"),
        Action("json", "parse_document", waits=False),
        Action("zlib", "compress_text", waits=False),
        Action("regex", "match_pattern", waits=False),
        Action("pbkdf2", "derive_key", waits=False),
        Action("child", "run_child", nested=True),
    ),
}
"""The actions that hang when they last long enough, by program."""
_UNBOUNDED = ("regex", "zlib", "json", "pbkdf2", "rlock", "child-output")
"""Actions whose duration exceeds the planned one, so that they are no quiet tasks."""
QUIET = {
    "c": ("modal", "modal-idle", "worker", "spawn", "nothing"),
    "python": ("modal", "gc", "worker", "spawn", "nothing"),
    "node": ("timer", "gc", "nothing"),
}
"""The actions that are no hangs at any duration that the scenarios have."""
MODES = {
    "c": ("epoll", "epoll-30ms", "epoll-1s", "poll", "select", "condition", "read", "sleep"),
    "python": ("asyncio", "asyncio-ticks", "queue", "selector", "selector-timeout"),
    "node": ("libuv",),
}
"""How the programs wait for commands."""
DISTURBANCES = ("@stop", "@freeze-v1", "@freeze-v2", "@quota", "@gdb", "@late-watcher", "@burners")
"""Acts of the runner: none of them is a hang."""
LOADED_DISTURBANCES = ("@stop", "@freeze-v1", "@freeze-v2", "@late-watcher")
"""Those beside burners."""


@dataclass(frozen=True, slots=True)
class Step:
    """One command to the program, or one act of the runner."""

    id: int
    action: str
    ms: int
    count: int = 1
    """The number of callbacks in a row."""
    gap_ms: int = 60
    """The idle time after it."""

    @property
    def is_hang(self) -> bool:
        """Whether it was planned as a hang."""
        is_long = self.ms >= MIN_HANG_MS or self.ms == UNTIL_RELEASED
        return is_long and not self.is_quiet_by_nature

    @property
    def is_quiet_by_nature(self) -> bool:
        """Whether it is no hang at any duration."""
        return self.action.startswith(BY_RUNNER) or any(
            self.action in names for names in QUIET.values()
        )

    @property
    def line(self) -> str:
        """The command as the programs read it."""
        return f"{self.id} {self.action} {self.ms} {self.count}\n"


@dataclass(frozen=True, slots=True)
class Scenario:
    """The steps of one run of one program."""

    program: str
    mode: str
    seed: str
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        """The row's name in tables."""
        return f"{self.program} {self.mode}"


def action_of(program: str, name: str) -> Action | None:
    """Return an action that can hang, or None."""
    return next((action for action in HANGS[program] if action.name == name), None)


def _hang(random: Random, actions: tuple[Action, ...], number: int) -> tuple[str, int]:
    # Each action in turn, so that few hangs have many kinds.
    action = actions[number % len(actions)]
    longest = 1000 if random.random() < 0.05 else 320
    if action.name == "a-then-more-b":
        return action.name, _JUST_A_HANG_MS
    return action.name, random.randint(MIN_HANG_MS + 3, longest)


def _quiet(random: Random, program: str) -> tuple[str, int, int]:
    kind = random.random()
    if kind < 0.1:
        return "short", random.randint(3, 8), random.randint(20, 40)
    if kind < 0.11:
        return "burn", random.randint(3, 8), random.randint(20, 40)
    if kind < 0.35:
        name = random.choice(QUIET[program])
        ms = random.randint(130, 300) if name.startswith(("modal", "worker")) else 10
        return name, ms, 1
    names = [action.name for action in HANGS[program] if action.name not in _UNBOUNDED]
    names = [name for name in names if name not in ("nested", "child", "gil-wait")]
    longest = MAX_QUIET_MS - 8
    ms = random.randint(longest * 2 // 3, longest) if kind < 0.65 else random.randint(1, 30)
    return random.choice(names), ms, 1


def create_scenario(
    program: str,
    mode: str,
    seed: str,
    *,
    hangs: int,
    quiet: int,
    disturbances: tuple[str, ...] = DISTURBANCES,
) -> Scenario:
    """Return the scenario of a seed: numbers of hangs and others, in random order."""
    random = Random(f"{seed}/{program}/{mode}")
    actions = list(HANGS[program])
    random.shuffle(actions)
    planned: list[tuple[str, int, int]] = []
    for number in range(hangs):
        name, ms = _hang(random, tuple(actions), number)
        planned.append((name, ms, 1))
    planned += [_quiet(random, program) for _ in range(quiet - len(disturbances))]
    planned += [(name, random.randint(180, 350), 1) for name in disturbances]
    random.shuffle(planned)
    steps = (
        Step(number, name, ms, count, random.randint(45, 75))
        for number, (name, ms, count) in enumerate(planned)
    )
    return Scenario(program, mode, seed, tuple(steps))


def create_scenarios(
    seed: str,
    programs: tuple[str, ...],
    *,
    hangs: int,
    quiet: int,
    disturbances: tuple[str, ...] = DISTURBANCES,
) -> list[Scenario]:
    """Return the scenarios of a run: the numbers are distributed over all modes, rounded up."""
    modes = [(program, mode) for program in programs for mode in MODES[program]]
    return [
        create_scenario(
            program,
            mode,
            seed,
            hangs=-(-hangs // len(modes)),
            quiet=-(-quiet // len(modes)),
            disturbances=disturbances,
        )
        for program, mode in modes
    ]
