"""Parts of a graph whose nodes can all reach one another (Tarjan 1972), without recursion."""

from __future__ import annotations

from collections.abc import Sequence


def strong_components(edges: Sequence[Sequence[int]]) -> list[list[int]]:
    """The components, each in ascending order; nodes on no circle are alone in theirs.

    Args:
        edges: of each node those that it leads to: their indices.
    """
    order = [-1] * len(edges)
    lowest = [0] * len(edges)
    is_open = [False] * len(edges)
    stack: list[int] = []
    found: list[list[int]] = []
    count = 0
    for root in range(len(edges)):
        if order[root] >= 0:
            continue
        work = [(root, 0)]
        while work:
            node, place = work.pop()
            if not place:
                order[node] = lowest[node] = count
                count += 1
                stack.append(node)
                is_open[node] = True
            else:
                lowest[node] = min(lowest[node], lowest[edges[node][place - 1]])
            for at in range(place, len(edges[node])):
                other = edges[node][at]
                if order[other] < 0:
                    work += [(node, at + 1), (other, 0)]
                    break
                if is_open[other]:
                    lowest[node] = min(lowest[node], order[other])
            else:
                if lowest[node] == order[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        is_open[component[-1]] = False
                    found.append(sorted(component))
    return found
