"""Interpreters and machines of the nodes, and the wheels that fit them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

OLDEST_MANYLINUX = 5
NEWEST_GLIBC = 1000  # of either number
WORD = re.compile(r"[A-Za-z0-9_.]{1,40}")
ALIASES = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}
MUSL = ("musllinux_1_2", "musllinux_1_1")


class Kind(NamedTuple):
    """Nodes of one kind get the very same wheels."""

    implementation: str
    python: str
    machine: str
    glibc: bool

    def __str__(self) -> str:
        name = {"cp": "python", "pp": "pypy"}.get(self.implementation, self.implementation)
        return f"{name} {self.python} {self.machine}{'' if self.glibc else ' musl'}"


@dataclass(frozen=True)
class Platform:
    """A kind with the oldest C library among its nodes: (2, 36); None for another one than glibc."""

    kind: Kind
    glibc: tuple[int, int] | None

    def tags(self) -> list[str]:
        """Platform tags of wheels that run here, the newest first."""
        machine = self.kind.machine
        if self.glibc is None:
            return [f"{tag}_{machine}" for tag in MUSL] + [f"linux_{machine}"]
        tags = []
        for minor in range(self.glibc[1], OLDEST_MANYLINUX - 1, -1):
            tags.append(f"manylinux_{self.glibc[0]}_{minor}_{machine}")
            if minor in ALIASES:
                tags.append(f"{ALIASES[minor]}_{machine}")
        return [*tags, f"linux_{machine}"]


def kind_of(facts: Mapping[str, Any]) -> Kind:
    """Raises ValueError for words that are no tags of wheels: they become arguments of pip."""
    minor = ".".join(facts["python"].split(".")[:2])
    found = Kind(facts["implementation"], minor, facts["machine"], facts["glibc"] is not None)
    if not all(WORD.fullmatch(word) for word in found[:3]) or max(facts["glibc"] or (0,)) > NEWEST_GLIBC:
        raise ValueError(f"{found} is no platform")
    return found


def platform_of(all_facts: Iterable[Mapping[str, Any]]) -> Platform:
    """The platform that nodes of one kind have in common."""
    facts = list(all_facts)
    glibc = [(one["glibc"][0], one["glibc"][1]) for one in facts if one["glibc"]]
    return Platform(kind_of(facts[0]), min(glibc, default=None))
