"""The lead among supervisors that live, die and speak in every order: what always holds."""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.plays import GRACE_S, NODE_GRACE_S, one_each
from clusterctl.agent.lead.actions import Action, Finish, Policy, RecordEvent, SendOrder
from clusterctl.agent.lead.state_machine import STOP_MARGIN_S, Lead

MOVES = (
    *("deliver", "obey", "progress", "good_exit", "bad_exit"),
    *("port_taken", "term", "crash", "cut_off", "give_up", "rejoin", "time"),
)
WEIGHTS = {"deliver": 6, "obey": 6, "progress": 6, "good_exit": 3}
LOTS = [move for move in MOVES for _ in range(WEIGHTS.get(move, 1))]
Key = tuple[str, int]


class Supervisor:
    """What a supervisor does, without processes: messages in order, either way."""

    def __init__(self, node: int, processes: list[Key], *, new: bool = False) -> None:
        self.node = node
        self.states: dict[Key, str] = dict.fromkeys(processes, "waiting")
        self.orders: deque[dict[str, Any]] = deque()
        self.words: deque[dict[str, Any]] = deque()
        self.stopping = self.finishing = self.idle = self.dead = self.gave_up = False
        self.ends = 0
        self.epoch = 0
        self.entered: int | None = None
        self.attempts = dict.fromkeys(processes, 1)
        self.send({"do": "hello", "new": True} if new else {"do": "hello"})

    def send(self, word: dict[str, Any], key: Key | None = None) -> None:
        about = (
            {"epoch": self.epoch} if key is None else {"role": key[0], "rank": key[1], "attempt": self.attempts[key]}
        )
        self.words.append({**word, **about})

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
        self.words.append({"do": "stop_wanted"})
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

    def move(self, lot: int) -> None:
        name, lot = LOTS[lot % len(LOTS)], lot // len(LOTS)
        living = self.living()
        who = living[lot % len(living)]
        getattr(self, f"_{name}")(who, lot // len(living))

    def _deliver(self, who: Supervisor, lot: int) -> None:
        if who.words:
            self.do(self.lead.alive(who.node, self.now))
            self.do(self.lead.handle(who.node, who.words.popleft(), self.now))
            if who.gave_up and who.idle and not who.words:
                self._crash(who, lot)

    def _obey(self, who: Supervisor, lot: int) -> None:
        if who.orders:
            who.obey(who.orders.popleft())

    def _progress(self, who: Supervisor, lot: int) -> None:
        waiting = [key for key, state in who.states.items() if state == "live"]
        if waiting:
            who.progress(waiting[lot % len(waiting)])

    def _good_exit(self, who: Supervisor, lot: int) -> None:
        live = [key for key in who.live() if key[0] == "trainer" or who.finishing or who.stopping]
        if live:
            who.exit(live[lot % len(live)], 0)

    def _bad_exit(self, who: Supervisor, lot: int) -> None:
        live = who.live()
        if live:
            self.trouble = True
            who.exit(live[lot % len(live)], 1)

    def _port_taken(self, who: Supervisor, lot: int) -> None:
        live = who.live()
        if live:
            self.trouble = True
            who.exit(live[lot % len(live)], 1, port_taken=True)

    def _term(self, who: Supervisor, lot: int) -> None:
        self.trouble = True
        who.term()

    def _give_up(self, who: Supervisor, lot: int) -> None:
        """It heard nothing of the lead for too long: it ends its part, and leaves when that is said."""
        if who.node != 0 and not who.stopping:
            self.trouble = who.gave_up = True
            who.stop()

    def _crash(self, who: Supervisor, lot: int) -> None:
        """The connection breaks, and nobody comes back."""
        if who.node != 0:
            self._cut_off(who, lot)
            self.do(self.lead.lose(who.node, "its supervisor is gone", self.now))

    def _cut_off(self, who: Supervisor, lot: int) -> None:
        if who.node != 0:
            self.trouble = who.dead = True

    def _rejoin(self, who: Supervisor, lot: int) -> None:
        """Somebody starts a supervisor anew on a node that the run waits for."""
        dead = [supervisor for supervisor in self.supervisors if supervisor.dead]
        if dead and self.waits:
            old = dead[lot % len(dead)]
            self.do(self.lead.lose(old.node, "its supervisor is gone", self.now))
            if self.lead.phase != "ended":  # else it would find nobody there
                self.supervisors[old.node] = Supervisor(old.node, list(old.states), new=True)

    def _time(self, who: Supervisor, lot: int) -> None:
        self.now += lot % 9
        self.beat()

    def beat(self) -> None:
        for supervisor in self.living():
            self.do(self.lead.alive(supervisor.node, self.now))
        self.do(self.lead.tick(self.now))

    def to_the_end(self) -> None:
        """No more trouble: what was said is heard, programs come to their ends, and time passes."""
        for supervisor in self.supervisors:
            while supervisor.gave_up and not supervisor.dead:
                self._good_exit(supervisor, 0)
                self._deliver(supervisor, 0)
        for _ in self.supervisors:
            self._rejoin(self.supervisors[0], 0)
        if self.waits:
            for supervisor in self.living():
                supervisor.words.append({"do": "rejoin"})
        for _ in range(int(NODE_GRACE_S + GRACE_S + STOP_MARGIN_S) + 10):
            for supervisor in self.living():
                for _ in range(30):
                    self._obey(supervisor, 0)
                    self._progress(supervisor, 0)
                    self._good_exit(supervisor, 0)
                    self._deliver(supervisor, 0)
            self.now += 1.0
            self.beat()


POLICIES = st.builds(
    Policy,
    restarts=st.builds(lambda n: {"pserver": n, "trainer": n}, st.integers(0, 3)),
    on_trainer_loss=st.sampled_from(("fail", "shrink", "wait")),
    together=st.booleans(),
    whole=st.sampled_from((False, False, True)),
    time_limit_s=st.none(),
)


@example(
    nodes=4,
    policy=Policy(restarts={"pserver": 0, "trainer": 0}, on_trainer_loss="wait", together=False),
    lots=[145, 638, 749, 141],
)
@settings(max_examples=400)
@given(nodes=st.integers(1, 4), policy=POLICIES, lots=st.lists(st.integers(0, 10_000), max_size=150))
def test_every_run_ends_once_and_nothing_starts_after_a_stop(nodes: int, policy: Policy, lots: list[int]) -> None:
    world = World(nodes, policy)
    for lot in lots:
        world.move(lot)
    world.to_the_end()

    finishes = [action for action in world.actions if isinstance(action, Finish)]
    ended = [a.event for a in world.actions if isinstance(a, RecordEvent) and a.event["event"] == "ended"]
    assert len(finishes) == len(ended) == 1, world.lead.phase
    orders = [action.message["do"] for action in world.actions if isinstance(action, SendOrder)]
    assert orders[-1] == "end"
    assert sum(a.message["do"] == "stop" and a.node is None for a in world.actions if isinstance(a, SendOrder)) <= 1
    starts = {"spawn", "respawn", "again"}
    assert not starts & set(orders[orders.index("stop") :]) if "stop" in orders else True
    assert orders.count("finish") <= 1 + orders.count("again")
    assert orders.count("spawn") <= 2 * (1 + orders.count("again"))
    assert all(supervisor.ends == 1 for supervisor in world.living())
    assert not any(supervisor.live() for supervisor in world.living()), "a process lives on after the end"
    if finishes[0].state == "succeeded":
        assert ended[0]["cause"] is None
    else:
        assert world.trouble
        assert ended[0]["cause"]
    if not world.trouble:
        assert finishes[0].state == "succeeded"
        assert ended[0]["not_heard_of"] == []


WORDS = st.sampled_from(("hello", "ready", "running", "exited", "failed", "stop_wanted", "saved", "idle"))


@settings(max_examples=200)
@given(words=st.lists(st.tuples(st.integers(0, 2), WORDS, st.booleans(), st.sampled_from((0, 1, -9))), max_size=60))
def test_words_in_no_sensible_order_do_no_harm(words: list[tuple[int, str, bool, int]]) -> None:
    lead = Lead(one_each(3), range(3), now=0.0, node_grace_s=NODE_GRACE_S, grace_s=GRACE_S)
    actions: list[Action] = []
    for now, (node, do, pserver, code) in enumerate(words):
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
