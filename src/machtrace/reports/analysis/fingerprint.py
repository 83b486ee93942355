"""Fingerprints: what identifies a problem across builds, from the app's own frames in a stack.

The hash covers the names of functions, less what changes from build to build, and the names of
their images; recursion counts once. An address is hashed only if there is no name. Compilers number
closures, blocks and clones, and copy generic functions for each type, so numbers, clones and
generics are removed from names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from machtrace.frozen import dataclass
from machtrace.model.report import Report, ReportedFrame, ReportedTask
from machtrace.reports.analysis.frame_owner import (
    NOWHERE,
    FrameOwner,
    OwnerReason,
    Owners,
    Ownership,
)
from machtrace.reports.analysis.recursion import folds

if TYPE_CHECKING:
    from machtrace.reports.analysis.grouping_rules import (
        AppliedRules,
        FingerprintRule,
        GroupingRules,
        Raised,
        RuleFrame,
    )

_MAX_LENGTH = 4096
"""Characters of a name that are examined."""
_PREFIX = re.compile(
    r"(?:(?:generic |not re-abstracted |function signature )*specialized "
    r"|(?:generic|function signature) (?:pre-)?specialization (?:<.{0,2000}> )?of "
    r"|partial apply (?:forwarder )?for "
    r"|(?:curry |dispatch |vtable |reabstraction |implicit )*thunk (?:helper )?(?:for|of) "
    r"|merged "
    r"|@objc |@nonobjc "
    r"|default argument [0-9]{1,4} of "
    r"|\([0-9]{1,6}\) (?:suspend|await) resume partial function for )"
)
_CLOSURE = re.compile(r"\b((?:implicit )?closure) #[0-9]{1,6}")
_WITNESS = re.compile(r"protocol witness for (?P<what>.{1,2000}) in conformance .{1,2000}")
_BLOCK = re.compile(r"_block_invoke[0-9]{0,9}(?:[_.][0-9]{1,9})*")
_BLOCK_LENGTH = re.compile(r"__[0-9]{1,6}(?=[-+]\[)")
_CLONE = re.compile(
    r"(?: \[clone [^\]]{1,200}\]| \([.][^)]{1,200}\)"
    r"|[.](?:cold|isra|part|constprop|lto_priv|llvm|resume|destroy|cleanup|warm)"
    r"(?:[.][0-9A-Za-z_]{1,40}){0,4}|[.][0-9]{1,20})$"
)
_RUST_HASH = re.compile(r"::h[0-9a-f]{16}$")
_LAMBDA = re.compile(r"(\$_|'lambda|\{lambda)[0-9]{0,9}('?)")
_LAMBDA_NUMBER = re.compile(r"#[0-9]{1,9}(?=\})")
_OPERATOR = re.compile(r"operator ?(?:<=>|<<=|>>=|->\*?|<<|>>|<=|>=|<|>)")
_NO_NAME = re.compile(
    r"(?:0x[0-9a-fA-F]{1,16}|\?\?\?|<redacted>|unnamed_[0-9a-f]{1,16}|__?mh_execute_header"
    r"|(?:.{1,200}\+)?0x[0-9a-f]{1,16}|[0-9]{1,20})"
)
_ANGLES = str.maketrans({"<": "\ue000", ">": "\ue001"})
_BACK = str.maketrans({"\ue000": "<", "\ue001": ">"})


def is_name(name: str) -> bool:
    """Return whether ``name`` is a name rather than an address."""
    return bool(name) and _NO_NAME.fullmatch(name[:_MAX_LENGTH]) is None


@lru_cache(1 << 12)
def grouping_name(name: str) -> str:
    """Return ``name`` as builds of the same source share it: without numbers, clones and generics.

    All closures of ``Demo.run`` share a name; ``specialized`` and thunks count as the function they
    belong to. Purely textual: nothing is looked up.
    """
    name = name[:_MAX_LENGTH].strip()
    while (match := _PREFIX.match(name)) is not None:
        name = name[match.end() :]
    witness = _WITNESS.fullmatch(name)
    if witness is not None:
        name = witness["what"]
    while (clone := _CLONE.search(name)) is not None and clone.start():
        name = name[: clone.start()]
    name = _RUST_HASH.sub("", name)
    name = _BLOCK_LENGTH.sub("", _BLOCK.sub("_block_invoke", name))
    if name.startswith(("-[", "+[")):
        return name
    name = _LAMBDA_NUMBER.sub("", _LAMBDA.sub(r"\1\2", _CLOSURE.sub(r"\1", name)))
    return without_generics(name)


def without_generics(name: str) -> str:
    """Return ``name`` without what is in angle brackets; operators spelt with them stay."""
    plain = _OPERATOR.sub(lambda match: match[0].translate(_ANGLES), name).replace("->", "-\ue001")
    if plain.count("<") != plain.count(">") or plain.startswith("<"):
        return name
    pieces: list[str] = []
    depth = start = 0
    for match in re.finditer("[<>]", plain):
        if match[0] == "<":
            if not depth:
                pieces.append(plain[start : match.start()])
            depth += 1
        else:
            depth -= 1
            start = match.end()
            if depth < 0:
                return name
    return "".join((*pieces, plain[start:])).translate(_BACK)


MAX_FRAMES = 16
"""Frames in a fingerprint, from the innermost on."""
_MIN_REPEATS = 2


class FingerprintBasis(Enum):
    """Which frames a fingerprint covers."""

    APP_FRAMES = "the app's frames"
    CULPRIT = "the function where the time went, and what it waited for"
    """The basis for incidents of a watcher."""
    CALL = "the function that was called, and its first caller outside of the system"
    """The basis for calls of a recording."""
    OTHER_FRAMES = "all frames, since none is known to be the app's"
    RULE = "the fingerprint that a grouping rule sets"
    NOTHING = "nothing: there are no frames"


class FingerprintFrame(NamedTuple):
    """A frame in a fingerprint."""

    place: int
    """Its index in the stack, from 0, innermost first."""
    image: str
    name: str
    """As hashed: see :func:`grouping_name`; without a name, the offset in the image."""
    is_named: bool
    """Whether it has a name; an offset changes with the next build."""
    reason: OwnerReason
    """Why the frame belongs to the app, or not."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The fingerprint of a stack."""

    hash: str
    """16 hexadecimal digits."""
    basis: FingerprintBasis
    frames: tuple[FingerprintFrame, ...]
    """The hashed frames, innermost first."""
    named: str = ""
    """The title that a grouping rule sets."""

    @property
    def is_build_sensitive(self) -> bool:
        """Whether another build of the same source would differ, since names are missing."""
        return not all(frame.is_named for frame in self.frames)

    @property
    def title(self) -> str:
        """The innermost hashed frame, as people read it."""
        if self.named or not self.frames:
            return self.named or "no frames"
        first = self.frames[0]
        return f"{first.name} ({first.image})" if first.image else first.name


def owners_of(task: ReportedTask) -> tuple[Ownership, ...]:
    """Return who owns each of the task's images."""
    process = task.process
    name = process.name or (process.identifier or "").rpartition(".")[2]
    owners = Owners(process.path or "", name)
    return tuple(owners.owner(image.path, image.name) for image in task.images)


def fingerprint(
    frames: Sequence[ReportedFrame],
    task: ReportedTask,
    owners: Sequence[Ownership] | None = None,
    *,
    rules: GroupingRules | None = None,
    raised: Raised | None = None,
    most: int = MAX_FRAMES,
    wait: str = "",
) -> Fingerprint:
    """Compute the fingerprint of a stack.

    Args:
        frames: innermost first.
        task: the process they belong to.
        owners: of its images, if already known: see :func:`owners_of`.
        rules: what adjusts it. Rules that change nothing about a stack leave its hash as it is.
        raised: the cause that rules match; the task's own if None.
        most: how many frames it covers.
        wait: the kind of what the thread waited for: see :func:`wait_kind`.
    """
    owners = owners_of(task) if owners is None else owners
    whose = [NOWHERE if frame.image is None else owners[frame.image] for frame in frames]
    if rules is not None:
        choice = choose_frames(frames, task, whose, rules, raised)
        by_frames = hashed_frames(choice.basis, choice.frames[: choice.most(most)], wait)
        named = choice.applied.named
        return by_frames if named is None else _by_rule(named, by_frames, choice)
    places = [at for at, ownership in enumerate(whose) if ownership.owner is FrameOwner.APP]
    basis = FingerprintBasis.APP_FRAMES
    if not places:
        places = list(range(len(frames)))
        basis = FingerprintBasis.OTHER_FRAMES if places else FingerprintBasis.NOTHING
    counted = [counted_frame(at, frames[at], whose[at], task) for at in places]
    return hashed_frames(basis, without_recursion(counted)[:most], wait)


def call_fingerprint(
    frames: Sequence[ReportedFrame], task: ReportedTask, owners: Sequence[Ownership] | None = None
) -> Fingerprint:
    """Compute the fingerprint of a recorded call: the function, and who called it.

    Args:
        frames: innermost first; the first one is the called function's.
        task: the process they belong to.
        owners: of its images, if already known: see :func:`owners_of`.
    """
    owners = owners_of(task) if owners is None else owners
    whose = [NOWHERE if frame.image is None else owners[frame.image] for frame in frames]
    callers = (at for at, each in enumerate(whose) if at and each.owner is not FrameOwner.SYSTEM)
    places = [*range(len(frames))[:1], *islice(callers, 1)]
    basis = FingerprintBasis.CALL if places else FingerprintBasis.NOTHING
    return hashed_frames(basis, [counted_frame(at, frames[at], whose[at], task) for at in places])


def hashed_frames(
    basis: FingerprintBasis, frames: Sequence[FingerprintFrame], wait: str = ""
) -> Fingerprint:
    """Return the fingerprint that covers ``frames``, and the kind of a wait."""
    digest = blake2b(basis.name.encode(), digest_size=8)
    for frame in frames:
        digest.update(frame_token(frame))
    if wait:
        digest.update(wait_token(wait))
    return Fingerprint(digest.hexdigest(), basis, tuple(frames))


def frame_token(frame: FingerprintFrame) -> bytes:
    """Return a frame's part of the bytes that are hashed."""
    return f"\0{frame.image}\1{frame.name}".encode("utf-8", "surrogatepass")


def wait_token(wait: str) -> bytes:
    """Return the part of a wait in the bytes that are hashed."""
    return f"\0\2{wait}".encode("utf-8", "surrogatepass")


def incident_fingerprint(task: Report, frames: Sequence[ReportedFrame]) -> Fingerprint:
    """Compute the fingerprint of a report, whose stack is ``frames``.

    A watcher's incident is identified by its culprit and the kind of its wait: its innermost frames
    differ from one sample to the next.
    """
    watch = task.watch
    if watch is None or watch.culprit is None:
        return fingerprint(frames, task)
    culprit = watch.culprit
    file = (culprit.file or "").replace("\\", "/").rpartition("/")[2]
    image = (culprit.image or "").rpartition("/")[2]
    if not image or culprit.native is not None or file.endswith(".py"):
        image = file or image  # a Python function: the image is the interpreter
    is_named = is_name(culprit.function)
    name = grouping_name(culprit.function) if is_named else culprit.function
    wait = "" if watch.waits_for is None else wait_kind(watch.waits_for.what)
    digest = blake2b(FingerprintBasis.CULPRIT.name.encode(), digest_size=8)
    for part in (watch.kind.value, image, name, wait):
        digest.update(f"\0{part}".encode("utf-8", "surrogatepass"))
    frame = FingerprintFrame(
        place=next((at for at, one in enumerate(frames) if _is_called(one, culprit.function)), 0),
        image=image,
        name=name,
        is_named=is_named,
        reason=OwnerReason.CULPRIT,
    )
    return Fingerprint(digest.hexdigest(), FingerprintBasis.CULPRIT, (frame,))


def _is_called(frame: ReportedFrame, function: str) -> bool:
    if frame.symbol is not None and frame.symbol.name == function:
        return True
    python = frame.details.get("python") if frame.details else None
    return isinstance(python, list) and any(
        isinstance(one, dict) and one.get("name") == function for one in python
    )


_WAIT_OBJECT = re.compile(r"[ (]*(?:\bto\b|\bof\b|\bon\b|[0-9/\"'“‘:]).*", re.DOTALL)


def wait_kind(what: str) -> str:
    """Return the kind of a wait without its object: ``socket`` of ``socket to 10.0.0.1:5432``."""
    return _WAIT_OBJECT.sub("", what[:_MAX_LENGTH]).strip() or what[:_MAX_LENGTH].strip()


def counted_frame(
    place: int, frame: ReportedFrame, whose: Ownership, task: ReportedTask
) -> FingerprintFrame:
    """Return a frame as it is hashed."""
    image = None if frame.image is None else task.images[frame.image]
    image_name = "" if image is None else image.name or image.path.rpartition("/")[2]
    if frame.symbol is not None and is_name(frame.symbol.name):
        name = grouping_name(frame.symbol.name)
        return FingerprintFrame(place, image_name, name, True, whose.reason)  # noqa: FBT003 - a row
    where = frame.offset if frame.offset is not None else frame.address
    name = "???" if where is None else f"{where:#x}"
    return FingerprintFrame(place, image_name, name, False, whose.reason)  # noqa: FBT003 - a row


def without_recursion(frames: list[FingerprintFrame]) -> list[FingerprintFrame]:
    """Return the frames with each sequence that repeats once."""
    same = [(frame.image, frame.name) for frame in frames]
    unfolded: list[FingerprintFrame] = []
    for fold in folds(same, least_times=_MIN_REPEATS):
        unfolded += frames[fold.first : fold.first + fold.period]
    return unfolded


class FrameChoice(NamedTuple):
    """The frames of a stack that count by grouping rules, before their number is limited."""

    basis: FingerprintBasis
    frames: list[FingerprintFrame]
    seen: list[RuleFrame]
    """All frames of the stack, as rules see them."""
    raised: Raised
    applied: AppliedRules

    def most(self, most: int) -> int:
        """Return how many frames count at most: rules can only lower the number."""
        limit = self.applied.limit
        return most if limit is None else min(most, limit.frames)


def choose_frames(
    frames: Sequence[ReportedFrame],
    task: ReportedTask,
    whose: Sequence[Ownership],
    rules: GroupingRules,
    raised: Raised | None = None,
) -> FrameChoice:
    """Apply grouping rules to a stack.

    Args:
        frames: innermost first.
        task: the process they belong to.
        whose: who owns each frame.
        rules: the rules.
        raised: the cause that they match; the task's own if None.
    """
    from machtrace.reports.analysis.grouping_rules import apply, raised_of, rule_frame

    raised = raised_of(task) if raised is None else raised
    counted = [counted_frame(at, frames[at], whose[at], task) for at in range(len(frames))]
    seen = [
        rule_frame(frames[each.place], task, each.name if each.is_named else None)
        for each in counted
    ]
    applied = apply(rules, seen, [each.owner is FrameOwner.APP for each in whose], raised)
    basis = FingerprintBasis.OTHER_FRAMES if frames else FingerprintBasis.NOTHING
    chosen = [
        each if verdict.app_rule is None else each._replace(reason=OwnerReason.RULE)
        for each, verdict in zip(counted, applied.verdicts, strict=True)
        if verdict.contributes
    ]
    return FrameChoice(
        FingerprintBasis.APP_FRAMES if applied.of_app else basis,
        without_recursion(chosen),
        seen,
        raised,
        applied,
    )


def _by_rule(rule: FingerprintRule, default: Fingerprint, choice: FrameChoice) -> Fingerprint:
    """Return the fingerprint that a rule sets; with ``default`` alone it is the stack's."""
    from machtrace.reports.analysis.grouping_rules import resolved

    parts = resolved(rule.parts, choice.seen, choice.applied, choice.raised)
    has_default = any(part.is_variable and part.text == "default" for part in rule.parts)
    named = "".join(resolved(rule.title, choice.seen, choice.applied, choice.raised))
    if has_default and len(rule.parts) == 1:
        return Fingerprint(default.hash, default.basis, default.frames, named)
    digest = blake2b(FingerprintBasis.RULE.name.encode(), digest_size=8)
    for part, text in zip(rule.parts, parts, strict=True):
        is_default = part.is_variable and part.text == "default"
        sign = "\1" if is_default else "\2"
        content = default.hash if is_default else text
        digest.update(f"\0{sign}{content}".encode("utf-8", "surrogatepass"))
    frames = default.frames if has_default else ()
    if not named and not has_default:
        named = ", ".join(parts)
    return Fingerprint(digest.hexdigest(), FingerprintBasis.RULE, frames, named)
