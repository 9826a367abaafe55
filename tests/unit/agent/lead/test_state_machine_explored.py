"""Invariants of the lead when supervisors join, die and send messages in every order."""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from clusterctl.agent.lead.actions import Action, Finish, Policy, RecordEvent, SendOrder
from clusterctl.agent.lead.state_machine import STOP_MARGIN_S, Lead
from unit.agent.plays import GRACE_S, NODE_GRACE_S, one_each

MOVES = (
    *("deliver", "obey", "progress", "good_exit", "bad_exit"),
    *("port_taken", "term", "crash", "cut_off", "give_up", "rejoin", "time"),
)
WEIGHTS = {"deliver": 6, "obey": 6, "progress": 6, "good_exit": 3}
WEIGHTED_MOVES = [move for move in MOVES for _ in range(WEIGHTS.get(move, 1))]
Key = tuple[str, int]


class Supervisor:
    """A supervisor without processes: messages in order, in both directions."""

    def __init__(self, node: int, processes: list[Key], *, new: bool = False) -> None:
        self.node = node
        self.states: dict[Key, str] = dict.fromkeys(processes, "waiting")
        self.orders: deque[dict[str, Any]] = deque()
        self.messages: deque[dict[str, Any]] = deque()
        self.stopping = self.finishing = self.idle = self.dead = self.gave_up = False
        self.ends = 0
        self.epoch = 0
        self.entered: int | None = None
        self.attempts = dict.fromkeys(processes, 1)
        self.send({"do": "hello", "new": True} if new else {"do": "hello"})

    def send(self, message: dict[str, Any], key: Key | None = None) -> None:
        about = (
            {"epoch": self.epoch} if key is None else {"role": key[0], "rank": key[1], "attempt": self.attempts[key]}
        )
        self.messages.append({**message, **about})

    def obey(self, order: dict[str, Any]) -> None:
        if order["do"] == "spawn" and not self.stopping:
            for key, state in self.states.items():
                if key[0] == order["role"] and state == "waiting":
                    self.states[key] = "live"
        elif order["do"] == "again" and not self.stopping and order["epoch"] != self.entered:
            self.epoch = self.entered = order["epoch"]
            self.renew({key: n for key in self.states if (n := order["attempts"].get(f"{key[0]}{key[1]}"))}, "waiting")
            self.send({"do": "hello"})
        elif order["do"] == "respawn" and not self.stopping:
            self.renew({(order["role"], order["rank"]): order["attempt"]}, "live")
        elif order["do"] == "stop":
            self.stop()
        elif order["do"] == "finish":
            self.finishing = True
            self.settle()
        elif order["do"] == "end":
            self.ends += 1

    def renew(self, attempts: dict[Key, int], state: str) -> None:
        self.idle = False
        for key in set(self.live()) & set(attempts):
            self.exit(key, -15, stopping=True)
        for key, attempt in attempts.items():
            assert attempt > self.attempts[key]
            self.attempts[key], self.states[key] = attempt, state
        self.idle = False

    def stop(self) -> None:
        self.stopping = True
        self.states = {key: "over" if state == "waiting" else state for key, state in self.states.items()}
        self.settle()

    def settle(self) -> None:
        if not self.idle and all(state == "over" for state in self.states.values()):
            self.idle = True
            attempts = {f"{role}{rank}": n for (role, rank), n in self.attempts.items()}
            self.send({"do": "idle", "stopping": self.stopping, "attempts": attempts})

    def term(self) -> None:
        self.messages.append({"do": "stop_wanted"})
        self.stop()

    def live(self) -> list[Key]:
        return [key for key, state in self.states.items() if state in ("live", "up")]

    def progress(self, key: Key) -> None:
        self.states[key] = "up"
        if key[0] == "pserver":
            self.send({"do": "ready", "endpoint": f"h:{key[1]}"}, key)
        else:
            self.send({"do": "running"}, key)

    def exit(self, key: Key, code: int, *, stopping: bool = False, port_taken: bool = False) -> None:
        if key[0] == "trainer" and code == 0 and self.states[key] == "live":
            self.progress(key)
        self.states[key] = "over"
        news = {"exit_code": code, "stopping": stopping or self.stopping, "port_taken": port_taken}
        self.send({"do": "exited", "message": "", "tail": [], **news}, key)
        self.settle()


class World:
    def __init__(self, nodes: int, policy: Policy) -> None:
        self.now = 0.0
        processes = one_each(nodes)
        self.lead = Lead(processes, range(nodes), now=0.0, node_grace_s=NODE_GRACE_S, grace_s=GRACE_S, policy=policy)
        self.supervisors = [
            Supervisor(n, [(role, k) for role, k, node in processes if node == n]) for n in range(nodes)
        ]
        self.actions: list[Action] = []
        self.trouble = False
        self.waits = policy.on_trainer_loss == "wait"

    def do(self, actions: list[Action]) -> None:
        self.actions += actions
        for action in actions:
            if isinstance(action, SendOrder):
                for supervisor in self.supervisors:
                    if action.node in (None, supervisor.node):
                        supervisor.orders.append(action.message)

    def living(self) -> list[Supervisor]:
        return [supervisor for supervisor in self.supervisors if not supervisor.dead]

    def move(self, choice: int) -> None:
        name, choice = WEIGHTED_MOVES[choice % len(WEIGHTED_MOVES)], choice // len(WEIGHTED_MOVES)
        living = self.living()
        supervisor = living[choice % len(living)]
        getattr(self, f"_{name}")(supervisor, choice // len(living))

    def _deliver(self, supervisor: Supervisor, choice: int) -> None:
        if supervisor.messages:
            self.do(self.lead.alive(supervisor.node, self.now))
            self.do(self.lead.handle(supervisor.node, supervisor.messages.popleft(), self.now))
            if supervisor.gave_up and supervisor.idle and not supervisor.messages:
                self._crash(supervisor, choice)

    def _obey(self, supervisor: Supervisor, choice: int) -> None:
        if supervisor.orders:
            supervisor.obey(supervisor.orders.popleft())

    def _progress(self, supervisor: Supervisor, choice: int) -> None:
        waiting = [key for key, state in supervisor.states.items() if state == "live"]
        if waiting:
            supervisor.progress(waiting[choice % len(waiting)])

    def _good_exit(self, supervisor: Supervisor, choice: int) -> None:
        live = [key for key in supervisor.live() if key[0] == "trainer" or supervisor.finishing or supervisor.stopping]
        if live:
            supervisor.exit(live[choice % len(live)], 0)

    def _bad_exit(self, supervisor: Supervisor, choice: int) -> None:
        live = supervisor.live()
        if live:
            self.trouble = True
            supervisor.exit(live[choice % len(live)], 1)

    def _port_taken(self, supervisor: Supervisor, choice: int) -> None:
        live = supervisor.live()
        if live:
            self.trouble = True
            supervisor.exit(live[choice % len(live)], 1, port_taken=True)

    def _term(self, supervisor: Supervisor, choice: int) -> None:
        self.trouble = True
        supervisor.term()

    def _give_up(self, supervisor: Supervisor, choice: int) -> None:
        """It has not heard from the lead for too long: it stops its processes, and leaves once that is reported."""
        if supervisor.node != 0 and not supervisor.stopping:
            self.trouble = supervisor.gave_up = True
            supervisor.stop()

    def _crash(self, supervisor: Supervisor, choice: int) -> None:
        """The connection breaks, and the supervisor does not come back."""
        if supervisor.node != 0:
            self._cut_off(supervisor, choice)
            self.do(self.lead.lose(supervisor.node, "its supervisor is gone", self.now))

    def _cut_off(self, supervisor: Supervisor, choice: int) -> None:
        if supervisor.node != 0:
            self.trouble = supervisor.dead = True

    def _rejoin(self, _: Supervisor, choice: int) -> None:
        """Someone starts a new supervisor on a node that the run is waiting for."""
        dead = [supervisor for supervisor in self.supervisors if supervisor.dead]
        if dead and self.waits:
            old = dead[choice % len(dead)]
            self.do(self.lead.lose(old.node, "its supervisor is gone", self.now))
            if self.lead.phase != "ended":  # otherwise it would find no lead
                self.supervisors[old.node] = Supervisor(old.node, list(old.states), new=True)

    def _time(self, supervisor: Supervisor, choice: int) -> None:
        self.now += choice % 9
        self.heartbeat()

    def heartbeat(self) -> None:
        for supervisor in self.living():
            self.do(self.lead.alive(supervisor.node, self.now))
        self.do(self.lead.tick(self.now))

    def to_the_end(self) -> None:
        """No more failures: messages are delivered, programs finish, and time passes."""
        for supervisor in self.supervisors:
            while supervisor.gave_up and not supervisor.dead:
                self._good_exit(supervisor, 0)
                self._deliver(supervisor, 0)
        for _ in self.supervisors:
            self._rejoin(self.supervisors[0], 0)
        if self.waits:
            for supervisor in self.living():
                supervisor.messages.append({"do": "rejoin"})
        for _ in range(int(NODE_GRACE_S + GRACE_S + STOP_MARGIN_S) + 10):
            for supervisor in self.living():
                for _ in range(30):
                    self._obey(supervisor, 0)
                    self._progress(supervisor, 0)
                    self._good_exit(supervisor, 0)
                    self._deliver(supervisor, 0)
            self.now += 1.0
            self.heartbeat()


POLICIES = st.builds(
    Policy,
    restarts=st.builds(lambda n: {"pserver": n, "trainer": n}, st.integers(0, 3)),
    on_trainer_loss=st.sampled_from(("fail", "shrink", "wait")),
    together=st.booleans(),
    whole=st.sampled_from((False, False, True)),
    time_limit_s=st.none(),
)


def play_to_the_end(world: World, choices: list[int]) -> tuple[Finish, Any, list[str]]:
    """Make these moves, and let the run end, which it does once. Return how, with the event and all orders."""
    for choice in choices:
        world.move(choice)
    world.to_the_end()

    finishes = [action for action in world.actions if isinstance(action, Finish)]
    ended: list[Any] = [a.event for a in world.actions if isinstance(a, RecordEvent) and a.event["event"] == "ended"]
    assert len(finishes) == len(ended) == 1, world.lead.phase
    orders: list[str] = [action.message["do"] for action in world.actions if isinstance(action, SendOrder)]
    assert orders[-1] == "end"
    starts = {"spawn", "respawn", "again"}
    assert not starts & set(orders[orders.index("stop") :]) if "stop" in orders else True
    assert not any(supervisor.live() for supervisor in world.living()), "a process is still running after the end"
    if finishes[0].state == "succeeded":
        assert ended[0]["cause"] is None
    else:
        assert world.trouble
        assert ended[0]["cause"]
    return finishes[0], ended[0], orders


@example(
    nodes=4,
    policy=Policy(restarts={"pserver": 0, "trainer": 0}, on_trainer_loss="wait", together=False),
    choices=[145, 638, 749, 141],
)
@settings(max_examples=50)
@given(nodes=st.integers(1, 4), policy=POLICIES, choices=st.lists(st.integers(0, 10_000), max_size=150))
def test_every_run_ends_once_and_nothing_starts_after_a_stop(nodes: int, policy: Policy, choices: list[int]) -> None:
    world = World(nodes, policy)
    finish, ended, orders = play_to_the_end(world, choices)
    assert sum(a.message["do"] == "stop" and a.node is None for a in world.actions if isinstance(a, SendOrder)) <= 1
    assert orders.count("finish") <= 1 + orders.count("again")
    assert orders.count("spawn") <= 2 * (1 + orders.count("again"))
    assert all(supervisor.ends == 1 for supervisor in world.living())
    if not world.trouble:
        assert finish.state == "succeeded"
        assert ended["not_heard_of"] == []


MESSAGES = st.sampled_from(("hello", "ready", "running", "exited", "failed", "stop_wanted", "saved", "idle"))


@settings(max_examples=50)
@given(
    messages=st.lists(st.tuples(st.integers(0, 2), MESSAGES, st.booleans(), st.sampled_from((0, 1, -9))), max_size=60)
)
def test_messages_in_no_sensible_order_do_no_harm(messages: list[tuple[int, str, bool, int]]) -> None:
    lead = Lead(one_each(3), range(3), now=0.0, node_grace_s=NODE_GRACE_S, grace_s=GRACE_S)
    actions: list[Action] = []
    for now, (node, do, pserver, code) in enumerate(messages):
        role = "pserver" if pserver else "trainer"
        news = {"role": role, "rank": node, "exit_code": code, "stopping": False, "endpoint": "h:1", "tag": "t"}
        actions += lead.handle(node, {"do": do, **news}, float(now))
        actions += lead.tick(float(now))
    actions += lead.handle(0, {"do": "stop_wanted"}, 100.0)
    actions += lead.tick(100.0 + GRACE_S + STOP_MARGIN_S + 1)
    assert sum(isinstance(action, Finish) for action in actions) == 1
    orders = [action.message["do"] for action in actions if isinstance(action, SendOrder)]
    assert orders.count("end") == 1
    assert "spawn" not in orders[orders.index("stop") :] if "stop" in orders else True
