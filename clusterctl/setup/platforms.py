"""The interpreters and machines of the nodes, and the platform tags of wheels that run on them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from clusterctl.common.transfer_messages import SetupFacts

OLDEST_MANYLINUX = 5
NEWEST_GLIBC = 1000  # for the major and the minor number
VERSION = re.compile(r"\d+\.\d+")
WORD = re.compile(r"[A-Za-z0-9_.]{1,40}")
ALIASES = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}
MUSL = ("musllinux_1_2", "musllinux_1_1")


class Kind(NamedTuple):
    """The interpreter and machine of a node. All nodes of one kind get exactly the same wheels."""

    implementation: str
    python: str
    machine: str
    glibc: bool

    def __str__(self) -> str:
        name = {"cp": "python", "pp": "pypy"}.get(self.implementation, self.implementation)
        return f"{name} {self.python} {self.machine}{'' if self.glibc else ' musl'}"


@dataclass(frozen=True)
class Platform:
    """A kind of node, with the oldest glibc among its nodes, such as (2, 36); None for another C library.

    `python` is the oldest full version among them, such as 3.11.2.
    """

    kind: Kind
    glibc: tuple[int, int] | None
    python: str

    def tags(self) -> list[str]:
        """Return the platform tags of wheels that run here, the newest first."""
        machine = self.kind.machine
        if self.glibc is None:
            return [f"{tag}_{machine}" for tag in MUSL] + [f"linux_{machine}"]
        tags = []
        for minor in range(self.glibc[1], OLDEST_MANYLINUX - 1, -1):
            tags.append(f"manylinux_{self.glibc[0]}_{minor}_{machine}")
            if minor in ALIASES:
                tags.append(f"{ALIASES[minor]}_{machine}")
        return [*tags, f"linux_{machine}"]


def kind_of(facts: SetupFacts) -> Kind:
    """Return the kind of a node. Raises ValueError for malformed facts, which would become arguments of pip."""
    minor = ".".join(facts["python"].split(".")[:2])
    kind = Kind(facts["implementation"], minor, facts["machine"], facts["glibc"] is not None)
    words = (*kind[:3], facts.get("uv") or "0")
    is_valid = all(WORD.fullmatch(word) for word in words) and VERSION.match(facts["python"])
    if not is_valid or max(facts["glibc"] or (0,)) > NEWEST_GLIBC:
        raise ValueError(f"{kind} is not a platform")
    return kind


def platform_of(all_facts: Iterable[SetupFacts]) -> Platform:
    """Return the platform that nodes of one kind have in common."""
    facts = list(all_facts)
    glibc = [(one["glibc"][0], one["glibc"][1]) for one in facts if one["glibc"]]
    pythons = {tuple(map(int, re.findall(r"\d+", one["python"])[:3])): one["python"] for one in facts}
    return Platform(kind_of(facts[0]), min(glibc, default=None), pythons[min(pythons)])
