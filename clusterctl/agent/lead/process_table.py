"""The processes of a run, as the lead knows them: attempts, where they listen, who is to come, who is done or gone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from clusterctl.agent.lead.restart_policy import Key

Message = dict[str, Any]


class ProcessTable:
    """`fresh` are to be started, `waiting` is this phase's news of; trainers that are `gone` nobody waits for, those
    that are `held` begin again when somebody says so."""

    def __init__(self, processes: Iterable[tuple[str, int, int]]) -> None:
        self.node_of: dict[Key, int] = {(role, rank): node for role, rank, node in processes}
        self.attempts = dict.fromkeys(self.node_of, 1)
        self.fresh = set(self.node_of)
        self.waiting = set(self.node_of)
        self.gone: set[int] = set()
        self.held: set[Key] = set()
        self.ended_well: dict[int, int] = {}  # trainers, and how many pushes they made
        self.endpoints: dict[str, str] = {}

    def of_role(self, role: str) -> set[Key]:
        return {key for key in self.node_of if key[0] == role and not (role == "trainer" and key[1] in self.gone)}

    def on(self, node: int) -> set[Key]:
        return {key for key, where in self.node_of.items() if where == node}

    def is_up(self, key: Key) -> None:
        self.waiting.discard(key)
        self.fresh.discard(key)

    def are_trained(self) -> bool:
        """Whether every trainer has come to its end."""
        return all(rank in self.ended_well for _, rank in self.of_role("trainer"))

    def whereabouts(self) -> Message:
        """What processes that are started are told of the others."""
        names = [name_of(key) for key in sorted(self.of_role("pserver"))]
        pservers = [self.endpoints[name] for name in names if name in self.endpoints]
        return {"pservers": pservers, "endpoints": dict(self.endpoints)}

    def is_old(self, message: Message) -> bool:
        """Whether a supervisor speaks of an attempt that is over."""
        if "attempt" in message and message["attempt"] != self.attempts.get((message["role"], message["rank"])):
            return True
        named: Mapping[str, int] = message.get("attempts", {})
        return any(attempt < self.attempts.get(key_of(name), attempt) for name, attempt in named.items())

    def again(self, key: Key) -> int:
        """The number of its next attempt, which is the one that counts from now on."""
        self.attempts[key] += 1
        return self.attempts[key]

    def begin_again(self, keys: Collection[Key], *, but_done: bool) -> None:
        """These are to be started once more, but trainers that are gone and, with `but_done`, that are done."""
        if not but_done:
            self.ended_well.clear()
        over = {*self.gone, *self.ended_well}
        self.fresh = {key for key in keys if key[0] != "trainer" or key[1] not in over}
        for key in self.fresh:
            self.again(key)
            self.endpoints.pop(name_of(key), None)
        self.held.clear()

    def give_up(self, keys: Collection[Key]) -> None:
        """The others go on without these trainers."""
        self.gone |= {rank for _, rank in keys}
        self.waiting -= set(keys)
        self.fresh -= set(keys)

    def left(self) -> dict[str, int]:
        """Trainers that pservers need not wait for, by rank, with the pushes that they are known to have made."""
        steps = {**dict.fromkeys(self.gone, 0), **self.ended_well}
        return {str(rank): step for rank, step in sorted(steps.items())}


def name_of(key: Key) -> str:
    return f"{key[0]}{key[1]}"


def key_of(name: str) -> Key:
    role = name.rstrip("0123456789")
    return role, int(name[len(role) :])
