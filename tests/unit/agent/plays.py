"""The lead, driven by hand: its clock, messages from its supervisors, and the record of its actions."""

from __future__ import annotations

from typing import Any

from clusterctl.agent.lead.actions import Action, Finish, RecordEvent, SendOrder, WriteManifest
from clusterctl.agent.lead.state_machine import Lead

NODE_GRACE_S, GRACE_S = 30.0, 10.0
PHASES = ("gathering", "pservers", "trainers", "running", "finishing")


def one_each(nodes: int) -> list[tuple[str, int, int]]:
    """Return a pserver and a trainer for every node."""
    return [(role, node, node) for role in ("pserver", "trainer") for node in range(nodes)]


class Play:
    """Drives a lead. Every call returns the actions that it caused; `actions` holds all of them."""

    def __init__(self, nodes: int = 2, processes: list[tuple[str, int, int]] | None = None, **options: bool) -> None:
        self.now = 1000.0
        self.nodes = nodes
        self.processes = one_each(nodes) if processes is None else processes
        self.actions: list[Action] = []
        self.lead = Lead(
            self.processes, range(nodes), now=self.now, node_grace_s=NODE_GRACE_S, grace_s=GRACE_S, **options
        )

    def did(self, actions: list[Action]) -> list[Action]:
        self.actions += actions
        return actions

    def says(self, node: int, do: str, **more: Any) -> list[Action]:
        return self.did(self.lead.handle(node, {"do": do, **more}, self.now))

    def exits(
        self, role: str, rank: int, code: int = 0, *, stopping: bool = False, port_taken: bool = False
    ) -> list[Action]:
        node = next(node for r, k, node in self.processes if (r, k) == (role, rank))
        fields = {
            "message": f"exited with code {code}",
            "tail": ["last words"] if code else [],
            "port_taken": port_taken,
        }
        return self.says(node, "exited", role=role, rank=rank, exit_code=code, stopping=stopping, t=1.0, **fields)

    def ready(self, rank: int) -> list[Action]:
        return self.says(rank % self.nodes, "ready", rank=rank, endpoint=f"host:{7000 + rank}")

    def running(self, rank: int) -> list[Action]:
        return self.says(rank % self.nodes, "running", role="trainer", rank=rank)

    def lose(self, node: int, why: str = "its supervisor is gone") -> list[Action]:
        return self.did(self.lead.lose(node, why, self.now))

    def alive(self, *nodes: int) -> list[Action]:
        return self.did([action for node in nodes for action in self.lead.alive(node, self.now)])

    def pass_time(self, seconds: float, alive: tuple[int, ...] = ()) -> list[Action]:
        """Advance the clock by half a second at a time, with heartbeats from `alive` nodes."""
        done: list[Action] = []
        for _ in range(round(seconds * 2)):
            self.now += 0.5
            done += self.alive(*alive)
            done += self.did(self.lead.tick(self.now))
        return done

    def reach(self, phase: str) -> Play:
        """Play a run without failures until the lead is in `phase`."""
        ranks = {role: [k for r, k, _ in self.processes if r == role] for role in ("pserver", "trainer")}
        self.says(0, "hello")
        for reached in PHASES[1 : PHASES.index(phase) + 1]:
            if reached == "pservers":
                for node in range(1, self.nodes):
                    self.says(node, "hello")
            elif reached == "trainers":
                for rank in ranks["pserver"]:
                    self.ready(rank)
            for rank in ranks["trainer"]:
                if reached == "running":
                    self.running(rank)
                elif reached == "finishing":
                    self.exits("trainer", rank)
        assert self.lead.phase == phase
        return self

    # The lead's actions.

    def orders(self) -> list[str]:
        return [str(action.message["do"]) for action in self.actions if isinstance(action, SendOrder)]

    def noted(self, event: str) -> list[dict[str, Any]]:
        return [a.event for a in self.actions if isinstance(a, RecordEvent) and a.event["event"] == event]

    def phases(self) -> list[str]:
        return [note["phase"] for note in self.noted("phase")]

    def ended(self) -> dict[str, Any]:
        """Return the only end. It is sent to all nodes, recorded, and passed to the loop: in this order, and last."""
        (ended,) = self.noted("ended")
        assert self.lead.phase == "ended"
        assert [type(action) for action in self.actions[-3:]] == [RecordEvent, SendOrder, Finish]
        assert self.orders().count("end") == 1
        finish = self.actions[-1]
        assert isinstance(finish, Finish)
        assert finish.state == ended["state"]
        return ended

    def manifests(self) -> list[WriteManifest]:
        return [action for action in self.actions if isinstance(action, WriteManifest)]
