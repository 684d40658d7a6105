"""The graph of needs, `{job_id: the ids it needs}`: its cycles and its reverse. Pure functions.

Needed ids that are not keys of the mapping (jobs of another manifest) are leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Needs = Mapping[str, Sequence[str]]


def dependents(needs: Needs) -> dict[str, list[str]]:
    """For each needed id the ids that need it, in the mapping's order."""
    reverse: dict[str, list[str]] = {}
    for job_id, needed in needs.items():
        for other in needed:
            reverse.setdefault(other, []).append(job_id)
    return reverse


def find_cycles(needs: Needs) -> list[list[str]]:
    """Cycles as paths `[a, b, a]`, at least one for every group of jobs that wait for each other."""
    # A depth-first walk, without recursion because chains may be longer than the interpreter's stack.
    cycles: list[list[str]] = []
    reported: set[str] = set()
    finished: set[str] = set()
    for start in needs:
        if start in finished:
            continue
        path = [start]
        on_path = {start}
        remaining = [iter(needs[start])]
        while path:
            for other in remaining[-1]:
                if other in finished or other not in needs:
                    continue
                if other not in on_path:
                    path.append(other)
                    on_path.add(other)
                    remaining.append(iter(needs[other]))
                    break
                if other in reported or path[-1] in reported:
                    # One cycle of a group is enough, and to follow each of many would be quadratic.
                    continue
                cycle = path[path.index(other) :]
                if reported.isdisjoint(cycle):
                    cycles.append([*cycle, other])
                    reported.update(cycle)
            else:
                remaining.pop()
                on_path.remove(path[-1])
                finished.add(path.pop())
    return cycles
