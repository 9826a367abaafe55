"""The newest copied save of each kind stays on the disks until a newer one is copied, in every order of events."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from clusterctl.agent.lead.saving.checkpoints import CheckpointRetention, CompleteCheckpoint, ModelRetention
from clusterctl.agent.lead.saving.copies import BEHIND_S, CopyPolicy
from clusterctl.agent.lead.saving.saves import SaveTracker
from clusterctl.common.manifest import checkpoint_tag, step_tag
from clusterctl.common.run_spec import KeepBest

NODES = 3
RINGS = {2: {1: (0,), 2: (1,), 0: (2,)}, 3: {1: (0, 2), 2: (1, 0), 0: (2, 1)}}
OLD = 1  # the step of the checkpoint and of the model from before a resumed run


class Cluster:
    """The disks of three nodes with a pserver each, and the lead's part in saves. Orders are obeyed at once, except
    those to copy: `report` decides how they end.
    """

    def __init__(self, keep: int, copies: int = 2, *, resumed: bool = False, best: KeepBest | None = None) -> None:
        first = CompleteCheckpoint(checkpoint_tag(OLD), OLD) if resumed else None
        models = ModelRetention(keep, {step_tag(OLD): OLD} if resumed else {})
        retention = CheckpointRetention(keep, best, first)
        sources = RINGS[copies] if copies > 1 else {}
        self.tracker = SaveTracker(range(NODES), 0, retention, models, CopyPolicy(sources), together=True)
        self.step = OLD
        self.saves: dict[str, set[int]] = {}  # on the disks: the nodes that have carried out the order to copy it
        self.was_copied: set[bool] = set()
        self.asked: list[tuple[int, str]] = []
        self.notes: list[str] = []
        self.events: list[Any] = []
        self.away: set[int] = set()
        self.older_runs = resumed
        if resumed:
            self.saves = {tag: set(range(NODES)) for tag in (checkpoint_tag(OLD), step_tag(OLD))}
            self.was_copied = {True, False}
        for node in range(NODES):
            self.tracker.copies.come(node, f"h{node}:1", 0.0)

    def do(self, actions: list[Any]) -> None:
        for action in actions:
            order = getattr(action, "message", {})
            if order.get("do") == "copy":
                self.asked.append((action.node, order["tag"]))
            elif order.get("do") == "keep":
                for tag in self.tags(checkpoint=True):
                    if tag not in order["tags"] and tag < order["newest"]:
                        del self.saves[tag]
                self.older_runs = self.older_runs and not order["alone"]
            elif order.get("do") == "drop_models":
                for tag in order["tags"]:
                    del self.saves[tag]
            elif hasattr(action, "event"):
                self.events.append(action.event)
                self.notes.append(action.event.get("message", ""))
        self.check()

    def tags(self, *, checkpoint: bool) -> list[str]:
        return sorted(tag for tag in self.saves if tag.startswith("step-") == checkpoint)

    def steps(self, *, checkpoint: bool = True) -> list[int]:
        return [int(tag.rpartition("-")[2]) for tag in self.tags(checkpoint=checkpoint)]

    def copied(self, *, checkpoint: bool) -> list[str]:
        return [tag for tag in self.tags(checkpoint=checkpoint) if len(self.saves[tag]) == NODES]

    def check(self) -> None:
        self.was_copied |= {kind for kind in (True, False) if self.copied(checkpoint=kind)}
        for kind in self.was_copied if self.tracker.copies.are_made else ():
            assert self.copied(checkpoint=kind), "the only copied save is gone"

    def save(self, *, checkpoint: bool, step: int | None = None) -> str:
        self.step = self.step + 1 if step is None else step
        tag = checkpoint_tag(self.step) if checkpoint else step_tag(self.step)
        about = {"tag": tag, "step": self.step, "checkpoint": checkpoint}
        for rank in range(NODES):
            self.says(rank, do="saved", role="pserver", rank=rank, **about)
        self.saves.setdefault(tag, set())
        self.says(0, do="written", tag=tag, checkpoint=checkpoint, bytes=9, sha256="ab")
        if checkpoint:
            self.says(0, do="kept", tag=tag, step=self.step, steps=[])
        return tag

    def says(self, node: int, **report: Any) -> None:
        self.do(self.tracker.handle(node, report, 0.0, "running"))

    def report(self, at: int = 0, *, fails: bool = False) -> None:
        """Let one of the nodes that copy end."""
        if self.asked:
            node, tag = self.asked.pop(at % len(self.asked))
            if tag in self.saves and not fails:
                self.saves[tag].add(node)
            more = {"message": "no room"} if fails or tag not in self.saves else {}
            self.says(node, do="copied", tag=tag, of="copy", bytes=5, **more)

    def copy_all(self) -> None:
        while self.asked:
            self.report()

    def leave(self, node: int) -> None:
        if node not in self.away and node:
            self.away.add(node)
            self.asked = [one for one in self.asked if one[0] != node]
            self.do(self.tracker.copies.leave(node, 0.0))

    def back(self) -> None:
        for node in sorted(self.away):
            self.tracker.copies.back(node)
        self.away.clear()


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("save"), st.booleans()),
        st.tuples(st.just("report"), st.integers(0, 5)),
        st.tuples(st.just("report"), st.integers(0, 5)),
        st.tuples(st.just("fail"), st.integers(0, 5)),
        st.tuples(st.just("leave"), st.integers(1, 2)),
        st.tuples(st.just("back"), st.just(0)),
        st.tuples(st.just("roll back"), st.just(0)),
        st.tuples(st.just("log"), st.integers(0, 9)),
    ),
    max_size=60,
)


ONE_LEAVES = [("save", False), ("report", 0), ("report", 0), ("leave", 1), ("report", 0)]


@settings(max_examples=40, deadline=None)
@example(moves=ONE_LEAVES, keep=1, copies=2, resumed=False, best=False)
@given(moves=MOVES, keep=st.integers(1, 3), copies=st.sampled_from([2, 3]), resumed=st.booleans(), best=st.booleans())
def test_a_copied_save_is_there_at_every_moment_after_the_first(
    moves: list[tuple[str, Any]], keep: int, copies: int, resumed: bool, best: bool
) -> None:
    cluster = Cluster(keep, copies, resumed=resumed, best=KeepBest("auc", "max") if best else None)
    for move, what in moves:
        if move == "save":
            cluster.save(checkpoint=what)
        elif move in ("report", "fail"):
            cluster.report(what, fails=move == "fail")
        elif move == "leave":
            cluster.leave(what)
        elif move == "back":
            cluster.back()
        elif move == "log":
            cluster.says(1, do="logged", rank=0, step=cluster.step, value=float(what), weight=1.0)
        else:
            cluster.step = cluster.tracker.go_back(forget_logs=True)["step"]
        for kind in (True, False):
            assert len(cluster.steps(checkpoint=kind)) <= keep + 4, "what is copied later must go as before"
    cluster.back()
    for kind in (True, False):
        cluster.save(checkpoint=kind)
    cluster.copy_all()
    assert len(cluster.steps()) <= keep + best


def test_what_a_run_was_resumed_from_stays_until_it_has_a_copied_save_of_its_own() -> None:
    cluster = Cluster(keep=1, resumed=True)
    for kind in (True, False):
        cluster.save(checkpoint=kind)
    assert OLD in cluster.steps()
    assert OLD in cluster.steps(checkpoint=False)
    assert cluster.older_runs
    cluster.copy_all()
    assert OLD not in [*cluster.steps(), *cluster.steps(checkpoint=False)]
    assert not cluster.older_runs


def test_checkpoints_are_copied_before_models_but_do_not_keep_them_waiting_for_ever() -> None:
    cluster = Cluster(keep=3)
    cluster.save(checkpoint=False)
    waiting = cluster.save(checkpoint=False)
    order = []
    for _ in range(5):
        cluster.save(checkpoint=True)
        order.append(cluster.asked[0][1])
        while cluster.asked and cluster.asked[0][1] == order[-1]:
            cluster.report()
    assert [tag.startswith("step-") for tag in order] == [False, True, True, True, False]
    assert order[-1] == waiting


def test_copies_that_lag_by_more_than_two_saves_are_a_warning_once() -> None:
    cluster = Cluster(keep=3)
    cluster.save(checkpoint=True, step=2)
    cluster.copy_all()
    for step in (5, 7):
        cluster.save(checkpoint=True, step=step)
    cluster.do(cluster.tracker.tick(BEHIND_S))
    assert cluster.notes[-1] == ""
    for step in (9, 11):
        cluster.save(checkpoint=True, step=step)
    cluster.do(cluster.tracker.tick(BEHIND_S / 2))
    assert not any("lag" in note for note in cluster.notes), "they were all saved a moment ago"
    for _ in range(2):
        cluster.do(cluster.tracker.tick(BEHIND_S))
    [note] = [note for note in cluster.notes if "lag" in note]
    assert "when step-000000011 was saved, the last 4 checkpoints were not copied" in note
    assert "the newest copied one was step-000000002; to save less often, set SAVE_EVERY" in note


def test_a_damaged_checkpoint_does_not_count_as_a_copied_one() -> None:
    cluster = Cluster(keep=2)
    tag = cluster.save(checkpoint=True)
    cluster.copy_all()
    cluster.tracker.checkpoints.discard(tag)
    cluster.was_copied.clear()
    assert cluster.tracker.copies.held(checkpoint=True) == set()
