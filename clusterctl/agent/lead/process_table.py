"""The lead's view of all processes of a run: attempts, endpoints, and which are pending, done or gone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from clusterctl.agent.lead.messages import ExitReport, RecoveryPoint, RespawnOrder, Whereabouts
from clusterctl.agent.lead.restart_policy import Key
from clusterctl.common.events import (
    EndCause,
    LostEvent,
    MovedEvent,
    ProcessOnNode,
    RejoinedEvent,
    RestartingEvent,
    RolledBackEvent,
)


class ProcessTable:
    """The `fresh` processes are to be started; this phase ends when no process is `waiting`. The run continues
    without the trainers that are `gone`; those that are `held` restart when their node rejoins.
    """

    def __init__(self, processes: Iterable[tuple[str, int, int]]) -> None:
        self.node_of: dict[Key, int] = {(role, rank): node for role, rank, node in processes}
        self.attempts = dict.fromkeys(self.node_of, 1)
        self.began = dict(self.attempts)  # those with which the epoch began
        self.fresh = set(self.node_of)
        self.waiting = set(self.node_of)
        self.gone: set[int] = set()
        self.held: set[Key] = set()
        self.ended_well: dict[int, int] = {}  # trainers, with the number of their pushes
        self.served: set[Key] = set()  # processes that had ended when their node was idle
        self.last_words: dict[int, ExitReport] = {}  # theirs
        self.endpoints: dict[str, str] = {}
        self.keys: dict[str, str] = {}  # the public keys of processes
        self.moved: dict[Key, int] = {}  # the nodes of the processes that are not where they were at the start

    def of_role(self, role: str) -> set[Key]:
        return {key for key in self.node_of if key[0] == role and not (role == "trainer" and key[1] in self.gone)}

    def on(self, node: int) -> set[Key]:
        return {key for key, home in self.node_of.items() if home == node}

    def is_up(self, key: Key) -> None:
        self.waiting.discard(key)
        self.fresh.discard(key)

    def end_well(self, message: ExitReport) -> None:
        """Record that a trainer has finished."""
        self.ended_well[message["rank"]] = int(message.get("pushes") or 0)
        self.last_words[message["rank"]] = message

    def are_trained(self) -> bool:
        """Return True if every trainer has finished."""
        return all(rank in self.ended_well for _, rank in self.of_role("trainer"))

    def whereabouts(self) -> Whereabouts:
        """The endpoints passed to started processes."""
        names = [name_of(key) for key in sorted(self.of_role("pserver"))]
        pservers = [self.endpoints[name] for name in names if name in self.endpoints]
        about: Whereabouts = {"pservers": pservers, "endpoints": dict(self.endpoints)}
        if self.keys:
            about["keys"] = dict(self.keys)
        return about

    def is_old(self, report: Mapping[str, Any]) -> bool:
        """Return True if a report of any kind is about an attempt that is over."""
        if "attempt" in report and report["attempt"] != self.attempts.get((report["role"], report["rank"])):
            return True
        named: Mapping[str, int] = report.get("attempts", {})
        return any(attempt < self.attempts.get(key_of(name), attempt) for name, attempt in named.items())

    def again(self, key: Key) -> int:
        """Advance a process to its next attempt, and return its number."""
        self.attempts[key] += 1
        return self.attempts[key]

    def respawn(self, key: Key, in_s: float, epoch: int) -> RespawnOrder:
        """The order to restart one process, in its next attempt."""
        attempt = self.again(key)
        about = self.whereabouts()
        role, rank = key
        return {"do": "respawn", "epoch": epoch, "role": role, "rank": rank, "attempt": attempt, "in_s": in_s, **about}

    def on_node(self, key: Key) -> ProcessOnNode:
        return {"role": key[0], "rank": key[1], "node": self.node_of[key]}

    def rejoined(self, key: Key) -> RejoinedEvent:
        return {"event": "rejoined", "role": key[0], "rank": key[1], "node": self.node_of[key]}

    def lost(self, key: Key, message: str) -> LostEvent:
        return {"event": "lost", "message": message, "role": key[0], "rank": key[1], "node": self.node_of[key]}

    def restarting(self, key: Key, cause: EndCause, in_s: float, count: str) -> RestartingEvent:
        """The event of a restart; `count` such as "restart 1 of 3"."""
        return {
            "event": "restarting",
            **self.on_node(key),
            "attempt": self.attempts[key] + 1,
            "in_s": in_s,
            "message": cause["message"],
            "exit_code": cause["exit_code"],
            "count": count,
        }

    def roll_back(self, keys: Collection[Key], *, but_done: bool) -> None:
        """Mark processes to be restarted, except trainers that are gone and, with `but_done`, those that are done."""
        if not but_done:
            self.ended_well.clear()
        over = {*self.gone, *self.ended_well}
        self.fresh = {key for key in keys if key[0] != "trainer" or key[1] not in over}
        for key in self.fresh:
            self.again(key)
            self.endpoints.pop(name_of(key), None)
        self.served -= self.fresh
        self.began = dict(self.attempts)
        self.held.clear()

    def rolled_back(self, epoch: int, to: RecoveryPoint) -> RolledBackEvent:
        """The event of a roll back."""
        return {
            "event": "rolled_back",
            "epoch": epoch,
            "tag": to["tag"],
            "step": to["step"],
            "whole": self.fresh >= self.of_role("pserver") | self.of_role("trainer"),
            "processes": sorted(name_of(key) for key in self.fresh),
        }

    def move(self, placed: Mapping[Key, int]) -> list[MovedEvent]:
        """Put processes on other nodes; return an event for each."""
        events: list[MovedEvent] = [
            {"event": "moved", "role": key[0], "rank": key[1], "node": node, "from_node": self.node_of[key]}
            for key, node in sorted(placed.items())
        ]
        self.node_of.update(placed)
        self.moved.update(placed)
        for key in placed:
            self.endpoints.pop(name_of(key), None)
        return events

    def give_up(self, keys: Collection[Key]) -> None:
        """Let the run continue without these trainers."""
        self.gone |= {rank for _, rank in keys}
        self.waiting -= set(keys)
        self.fresh -= set(keys)

    def left(self) -> dict[str, int]:
        """The trainers that pservers need not wait for, by rank, with the number of their pushes as far as known."""
        steps = {**dict.fromkeys(self.gone, 0), **self.ended_well}
        return {str(rank): step for rank, step in sorted(steps.items())}


def name_of(key: Key) -> str:
    return f"{key[0]}{key[1]}"


def key_of(name: str) -> Key:
    role = name.rstrip("0123456789")
    return role, int(name[len(role) :])
