"""The samples of each thread, in the order of time."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from machtrace.model.profile import Profile


@dataclass(frozen=True, slots=True, eq=False)
class ThreadSamples:
    """Columns of one thread's samples; see :class:`~machtrace.model.profile.SampleTable`."""

    times_ns: array[int] = field(default_factory=lambda: array("q"))
    stacks: array[int] = field(default_factory=lambda: array("i"))
    weights: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.stacks)


def thread_samples(profile: Profile) -> tuple[ThreadSamples, ...]:
    """Of each of the profile's threads."""
    found = tuple(ThreadSamples() for _ in profile.threads)
    samples = profile.samples
    for time, thread, stack, weight in zip(
        samples.times_ns, samples.threads, samples.stacks, samples.weights, strict=True
    ):
        of_thread = found[thread]
        of_thread.times_ns.append(time)
        of_thread.stacks.append(stack)
        of_thread.weights.append(weight)
    return found


def without_repeats(samples: ThreadSamples) -> ThreadSamples:
    """The same, with one row for samples of the same stack that follow one another."""
    merged = ThreadSamples()
    for time, stack, weight in zip(samples.times_ns, samples.stacks, samples.weights, strict=True):
        if merged.stacks and merged.stacks[-1] == stack:
            merged.weights[-1] += weight
        else:
            merged.times_ns.append(time)
            merged.stacks.append(stack)
            merged.weights.append(weight)
    return merged
