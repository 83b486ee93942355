"""How often which stack was seen in a profile: by each thread, or by all together."""

from __future__ import annotations

from machtrace.render.call_tree import stack_weights
from machtrace.model.profile import OUTERMOST, Profile


def thread_weights(profile: Profile) -> list[dict[int, int]]:
    """Of each thread how often it had which stack, by the stack's row."""
    found: list[dict[int, int]] = [{} for _ in profile.threads]
    samples = profile.samples
    for thread, stack, weight in zip(samples.threads, samples.stacks, samples.weights, strict=True):
        weights = found[thread]
        weights[stack] = weights.get(stack, 0) + weight
    for weights in found:
        weights.pop(OUTERMOST, None)  # of a thread whose registers alone could be had
    return found


def all_weights(profile: Profile) -> dict[int, int]:
    """How often any thread had which stack, by the stack's row."""
    return stack_weights(profile.samples.stacks, profile.samples.weights)
