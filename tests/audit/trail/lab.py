"""Count calls whose asker or owner differs from the truth of their scenario.

``python -m tests.audit.trail.lab [CALLS]`` records each scenario CALLS times (250 by default) and
prints the sums for a program with debug information, for a stripped one with its link map, and for
a stripped one without, whose libraries have only the names of methods. The exit status is 1 if a
library is wrong, or if in one of the first two more than 2 % of the calls have no answer; without a
link map the functions at the ends of each library are unknown.
"""

import sys
from collections import Counter
from typing import NamedTuple

from machtrace.audit.trail.attribution import attribute
from machtrace.audit.trail.owners import Reason
from tests.audit.trail.program import DEBUG, KNOWN_BY, NAMES, Program
from tests.audit.trail.scenarios import NEED_DEBUG_INFORMATION, SCENARIOS, UNDECIDABLE

CALLS = 250
MAX_UNKNOWN = 0.02


class Answer(NamedTuple):
    """One call's answer and truth."""

    scenario: str
    expected: object
    asker: str
    owner: str
    flags: int
    asker_reason: Reason
    owner_reason: Reason

    @property
    def is_wrong(self):
        """Whether a library is reported that is not the true one."""
        truth = self.expected
        return self.asker not in ("?", truth.asker) or self.owner not in ("?", truth.owner)

    @property
    def is_unknown(self):
        """Whether a library is not reported."""
        return "?" in (self.asker, self.owner)


class Lab:
    """All scenarios in one program, mixed."""

    def __init__(self, calls=CALLS, *, known_by=DEBUG, seed=7):
        self.program = Program(seed=seed)
        self.scenarios = [
            name for name in SCENARIOS if known_by == DEBUG or name not in NEED_DEBUG_INFORMATION
        ]
        order = [name for name in [*self.scenarios, *UNDECIDABLE] for _ in range(calls)]
        self.program.random.shuffle(order)
        for name in order:
            record = SCENARIOS.get(name) or UNDECIDABLE[name][0]
            record(self.program)
            self.program.scenario[-1] = name
        code, facts = self.program.code(known_by)
        self.trail = self.program.trail()
        self.trail.check()
        self.result = attribute(self.trail, code, facts)
        self.answers = [self._answer(number) for number in range(len(order))]

    def _answer(self, number):
        result, row = self.result, self.result.row_of_call[number]
        return Answer(
            self.program.scenario[number],
            self.program.expected[number],
            result.library_name(result.asker[row]),
            result.library_name(result.owner[row]),
            int(result.flags[row]),
            Reason(int(result.asker_reason[row])),
            Reason(int(result.owner_reason[row])),
        )

    def of(self, *scenarios):
        """Return the answers of scenarios."""
        return [answer for answer in self.answers if answer.scenario in scenarios]


def _print(title, answers):
    wrong = [answer for answer in answers if answer.is_wrong]
    unknown = [answer for answer in answers if answer.is_unknown]
    scenarios = len({answer.scenario for answer in answers})
    counts = f"{len(wrong)} wrong, {len(unknown):,} unknown ({len(unknown) / len(answers):.2%})"
    lines = [f"{title}: {scenarios} scenarios, {len(answers):,} calls, {counts}"]
    reasons = Counter((each.asker_reason or each.owner_reason).name for each in unknown)
    for reason, count in reasons.most_common():
        lines.append(f"    {reason.lower().replace('_', ' ')}: {count:,}")
    lines += [f"    wrong: {each}" for each in wrong[:5]]
    sys.stdout.write("\n".join(lines) + "\n")
    return len(wrong), len(unknown) / len(answers)


def main(calls):
    """Print the sums of all programs, and return the exit status."""
    is_failed = False
    for known_by in KNOWN_BY:
        lab = Lab(calls, known_by=known_by)
        wrong, unknown = _print(f"by {known_by}", lab.of(*lab.scenarios))
        wrong += _print(f"by {known_by}, no answer in the stack", lab.of(*UNDECIDABLE))[0]
        is_failed |= wrong > 0 or (known_by != NAMES and unknown > MAX_UNKNOWN)
    return int(is_failed)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else CALLS))
