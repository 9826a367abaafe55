"""Invariants of the lead when nodes are lost, processes move, and lost nodes come back as spares, in every order."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.agent.lead.actions import Action, Policy, RecordEvent
from clusterctl.agent.lead.lease import SHARE
from clusterctl.common.run_spec import MemberPlace
from unit.agent.lead.test_state_machine_explored import WEIGHTED_MOVES, Key, Supervisor, World, play_to_the_end
from unit.agent.plays import NODE_GRACE_S

BOTH = ("pserver", "trainer")
MOVES = [*(move for move in WEIGHTED_MOVES if move not in ("give_up", "rejoin")), "come_back", "long_time"]


class MovingSupervisor(Supervisor):
    """A supervisor that other nodes' processes may move to."""

    def obey(self, order: dict[str, Any]) -> None:
        if order["do"] == "again" and not self.stopping and order["epoch"] != self.entered:
            moved = order.get("moved", {}).items()
            homes = {(name.rstrip("0123456789"), int(name.lstrip("pservtain"))): node for name, node in moved}
            for key in [key for key, node in homes.items() if node == self.node and key not in self.states]:
                self._add(key)
            for key in [key for key in self.states if homes.get(key, self.node) != self.node]:
                assert self.states.pop(key) not in ("live", "up"), "it runs here, and elsewhere, too"
        elif order["do"] == "respawn" and not self.stopping and (order["role"], order["rank"]) not in self.states:
            self._add((order["role"], order["rank"]))
        super().obey(order)

    def _add(self, key: Key) -> None:
        self.states[key], self.attempts[key] = "over", 0


class MovingWorld(World):
    """Nodes may be lost, and come back. `cut_at`: when a node was cut off, or its supervisor was killed."""

    def __init__(self, nodes: int, policy: Policy) -> None:
        super().__init__(nodes, policy)
        self.supervisors = [MovingSupervisor(one.node, list(one.states)) for one in self.supervisors]
        self.cut_at: dict[int, float] = {}

    def do(self, actions: list[Action]) -> None:
        super().do(actions)
        for action in actions:
            if isinstance(action, RecordEvent) and action.event["event"] == "moved":
                event: Any = action.event
                assert event["node"] != event["from_node"]
                assert not self.lead.is_moved_from(event["node"]), "to a node that is lost, too"
                fenced_at = self.cut_at[event["from_node"]] + SHARE * NODE_GRACE_S
                assert self.now >= fenced_at, "its guardian may not have killed it yet"

    def move(self, choice: int) -> None:
        name, choice = MOVES[choice % len(MOVES)], choice // len(MOVES)
        living = self.living()
        supervisor = living[choice % len(living)]
        getattr(self, f"_{name}")(supervisor, choice // len(living))
        self.nothing_runs_twice()

    def nothing_runs_twice(self) -> None:
        running = [key for supervisor in self.supervisors if self._runs(supervisor) for key in supervisor.live()]
        assert len(running) == len(set(running)), running

    def _runs(self, supervisor: Supervisor) -> bool:
        """Return True if processes of a node may be running: it is there, or its lease has not expired."""
        return not supervisor.dead or self.now < self.cut_at[supervisor.node] + SHARE * NODE_GRACE_S

    def _cut_off(self, supervisor: Supervisor, choice: int) -> None:
        if supervisor.node != 0:
            self.cut_at[supervisor.node] = self.now
        super()._cut_off(supervisor, choice)

    def _long_time(self, supervisor: Supervisor, choice: int) -> None:
        for _ in range(int(NODE_GRACE_S) + 2):
            self.now += 1.0
            self.heartbeat()

    def _come_back(self, _: Supervisor, choice: int) -> None:
        """A node whose processes have moved gets through to the lead again."""
        gone = [one for one in self.supervisors if one.dead and self.lead.is_moved_from(one.node)]
        gone = [one for one in gone if not self.lead.is_moving(one.node)]
        if gone and self.lead.phase != "ended":
            node = gone[choice % len(gone)].node
            self.supervisors[node] = back = MovingSupervisor(node, [])
            back.messages.clear()
            back.send({"do": "hello", "new": True, "spare": True})


POLICIES = st.builds(
    lambda nodes, restarts, together, copies: (
        nodes,
        Policy(
            restarts={"pserver": restarts, "trainer": restarts},
            on_node_loss="move",
            members=[
                MemberPlace(node=node, roles=BOTH, shards=copies and tuple((node - i) % nodes for i in range(copies)))
                for node in range(nodes)
            ],
            together=together,
        ),
    ),
    st.integers(2, 5),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from([None, 1, 2]),
)


@settings(max_examples=100)
@given(what=POLICIES, choices=st.lists(st.integers(0, 10_000), max_size=150))
def test_every_run_ends_once_and_nothing_runs_twice(what: tuple[int, Policy], choices: list[int]) -> None:
    play_to_the_end(MovingWorld(*what), choices)
