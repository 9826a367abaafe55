"""When a trainer's own state is taken and loaded.

State k is the one after k pushes, and after what the program did then: it is taken when the program asks for its first
batch after a push, when a loop begins, and at the end of a pass after `on_pass`. A trainer that is started again finds
the pservers after k pushes. If state k is there, it goes on. If only state k - 1 is there, in sync it goes back by one
push: that batch is computed again from the values of then, and its push is answered as repeated. If neither is there,
in sync all go back to the newest checkpoint. In the other modes the newest state is loaded, and the trainer goes on.

A state is loaded when a thing is added, and again where the first loop begins that is not empty: the program's code
between empty loops has run again by then. That code finds things as the program made them, since a scheduler, for one,
may refuse more steps than it has.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Protocol

from clusterctl.common.manifest import checkpoint_tag
from clusterctl.common.modes import Mode
from clusterctl.runtime.environment import Environment
from clusterctl.runtime.errors import ModelError, ProcessError, UseError
from clusterctl.runtime.modes import CHECKPOINT, EACH_PASS, CutSchedule
from clusterctl.runtime.state.files import CopiedState, Loadable, SavedState, StateContent, StateFiles, TrainerPosition
from clusterctl.runtime.supervisor_socket import SupervisorSocket, print_line

#: A larger state is written at cuts only, unless `always` is set.
LARGEST = 1 << 20
_PATIENCE_S = 120.0  # the supervisor ends a trainer that waits for a roll back


class Stateful(Protocol):
    """A thing that has state."""

    def take(self) -> StateContent | None:
        """Return its state as it is now, with one entry in the tree; None if it has none at present."""
        ...

    def load(self, saved: Loadable) -> None:
        """Load the state that `take` returned. Raises UseError if it does not fit."""
        ...


class Pushes(Protocol):
    """A trainer's client: its next batch, its pushes, and the newest cut that replies announced."""

    mode: Mode
    step: int
    next_pass: int
    batch: int
    position: Any
    left: bool
    epoch: int
    cut: int
    has_state: bool
    had_state: bool


class StateKeeper:
    """The state of the things that were added, by name. `always` writes it after each push, whatever its size.

    Finds the state to load, and sets the client back by one push if need be. Without pservers nothing is written.
    """

    def __init__(self, env: Environment, client: Pushes, supervisor: SupervisorSocket) -> None:
        self.always = False
        self._env = env
        self._client = client
        self._supervisor = supervisor
        self._files = StateFiles(env, client.epoch)
        self._is_sync = client.mode.name == "sync"
        self.cuts = _schedule(env)
        self._every = self.cuts.by_purpose().get(CHECKPOINT)
        self._kept: dict[str, Stateful] = {}
        self._late: dict[str, Stateful] = {}
        self._base = _restored_step(env)
        self._announced: set[int] = set()
        self._taken = -1  # the pushes at the last call of `take`
        self._at = (-1, 0)  # the pass and batch of then
        self._is_large = False
        self._cut_tag = ""  # that of the last cut written
        self._damage = ""
        self._failed = False
        self._found = None if env.local else self._find()
        if self._found is not None and self._is_sync:
            _go_back(client, self._found.place)
        self._began = client.step
        self._lacks_on_pass = False
        #: True while the state that was found belongs to a loop that has not begun yet.
        self.waits = False
        self.record_loops: Callable[[], Any] = lambda: None
        self._loop_end: int | None = None
        self._is_loaded = self._found is None
        self._made: list[tuple[Stateful, CopiedState]] = []  # the states of things before they were loaded

    def add(self, name: str, kept: Stateful, *, late: bool = False) -> None:
        """Add a thing, and load its state if there is one. One that is `late` only goes along with others, and is
        loaded when the loop begins.
        """
        if late:
            self._late[name] = kept
            return
        if name in self._kept:
            raise UseError(f"a second ps.keep({name!r}, ...)", remedy="use another name")
        state = kept.take()  # raises
        found = self._found if self._client.step == self._began else None
        if found is not None and name in found.tree:
            self._made.extend([] if state is None else [(kept, CopiedState(state))])
            kept.load(found)
        elif found is not None:
            print_line(f"warning: the saved state has no {name!r}; it starts as the program made it")
        self._kept[name] = kept
        self._client.has_state = True

    @property
    def is_empty(self) -> bool:
        """True if no state is written."""
        return not self._kept

    @property
    def known_loops(self) -> Any:
        """What `Loops.record` returned when the state was taken, None without a state."""
        return None if self._found is None else self._found.place.loops

    def is_before(self, pass_: int) -> bool:
        """Return True if the state to load is that of a loop which begins with this pass or a later one."""
        found = self._found
        return found is not None and not self._is_loaded and not found.place.is_between and found.place.pass_ >= pass_

    def replay(self) -> None:
        """Return things to what they were when they were added, at the first empty loop."""
        while self._made:
            kept, state = self._made.pop()
            kept.load(state)

    def begin(self, pass_: int, batch: int, end: int | None, *, rejoins: bool) -> None:
        """Begin a loop, whose first batch this is, and whose passes end before `end`, None if that is not known.

        It `rejoins` if it begins with what was left to do after a pass.
        """
        self._loop_end = end
        if not self._kept or self._env.local or self._client.left:
            return
        found, step = self._found, self._client.step
        if self._taken < 0 and found is None and self._began == step:
            self._check_lost()
        self.waits = rejoins and end is not None and self.is_before(end)
        if self.waits:
            return
        is_between = False
        if found is not None and not self._is_loaded:
            self._load(found)
            if found.place.step == step:
                self._lacks_on_pass = found.place.pass_ < pass_
                pass_, batch = found.place.pass_, found.place.batch
                # That of after this loop, not of before it.
                is_between = found.place.is_between and end is not None and pass_ >= end
        self.take(pass_, batch, again=True, is_between=is_between)

    def repeat_on_pass(self, on_pass: Callable[[int], Any] | None, pass_: int) -> None:
        """Call `on_pass` if the state that was loaded is that before it, of a pass that all trainers have ended."""
        if self._lacks_on_pass and on_pass is not None:
            on_pass(pass_)
        self._lacks_on_pass = False

    def take(
        self, pass_: int, batch: int, *, again: bool = False, is_cut: bool = False, is_between: bool = False
    ) -> None:
        """Take the state before a batch, unless it was taken since the last push; with `again` in any case.

        It also goes into a checkpoint if one is due now, or with `is_cut`.
        """
        if not self._kept or self._env.local or self.waits:
            return
        if self._client.step == self._taken and not again:
            return
        if pass_ == self._at[0]:  # a trainer that rejoins at the end of a pass has forgotten how many batches it had
            batch = max(batch, self._at[1])
        place = TrainerPosition(self._client.step, pass_, batch, self._client.position, is_between, self.record_loops())
        self._taken, self._at = place.step, (pass_, batch)
        tag = checkpoint_tag(place.step) if is_cut else self._due_cut(place.step)
        if self._is_large and not self.always and tag is None:
            return
        state = self._state()
        if self.always or not self._is_large:
            self._write(state, place)
        if tag is not None:
            self._write_cut(state, place, tag)

    def end_pass(self, pass_: int) -> None:
        """Take the state after `on_pass`. In sync there may be a checkpoint at the end of a pass."""
        is_cut = self._is_sync and self._every is not None and self._every.is_pass(pass_ + 1)
        is_between = self._loop_end is not None and pass_ + 1 >= self._loop_end
        is_cut = is_cut and self._client.step > self._base
        self.take(pass_ + 1, 0, again=True, is_cut=is_cut, is_between=is_between)

    def leave(self, pass_: int, batch: int) -> None:
        """Write the state into a checkpoint that the trainer still owes."""
        if self._kept and not self._env.local and self._due_cut(self._client.step) is not None:
            self.take(pass_, batch, again=True)

    def _state(self) -> StateContent:
        """Return the state. What goes along, such as the gradients of a pass's end, does not make it a large one."""
        taken = [state for kept in self._kept.values() if (state := kept.take()) is not None]
        self._is_large = sum(state.bytes for state in taken) > LARGEST
        taken += [state for kept in self._late.values() if (state := kept.take()) is not None]
        tree = {name: value for state in taken for name, value in state.tree.items()}
        return StateContent(tree, [entry for state in taken for entry in state.entries])

    def _load(self, found: SavedState) -> None:
        self._is_loaded = True
        self._made.clear()
        for name, kept in {**self._kept, **self._late}.items():
            if name in found.tree:
                kept.load(found)

    def _find(self) -> SavedState | None:
        """Return the state to load. In sync it fits the pushes that the pservers have."""
        own, step = [*self._files.newest(), *self._files.in_cuts()], self._client.step
        own.sort(key=lambda state: state.place.step, reverse=True)
        restored = self._restored() if self._is_sync or not own else None
        found = own if restored is None else [*own, restored]
        if not self._is_sync:
            return found[0] if found else None
        fitting = [state for state in found if step - 1 <= state.place.step <= step]
        return max(fitting, key=lambda state: state.place.step, default=None)

    def _restored(self) -> SavedState | None:
        try:
            return self._files.restored()
        except ModelError as exc:
            self._damage = f": {exc}"
            return None

    def _due_cut(self, step: int) -> str | None:
        """Return the tag of the checkpoint that is due at this step, None if it is written."""
        number, purpose = self.cuts.decode(self._client.cut)
        if purpose & CHECKPOINT and number:
            self._announced.add(number)
        if self._is_sync:
            is_due = step > self._base and (step in self._announced or bool(self._every and self._every.is_step(step)))
            tag = checkpoint_tag(step)
        else:
            is_due, tag = bool(self._announced), checkpoint_tag(max(self._announced, default=0))
        return tag if is_due and tag != self._cut_tag else None

    def _write(self, state: StateContent, place: TrainerPosition) -> None:
        """Write the state for a successor. Without it, the run may have to go back further: no reason to end it."""
        try:
            self._files.write(state, place)
        except OSError as exc:
            if not self._failed:
                print_line(f"warning: the state of trainer {self._env.rank} cannot be written ({exc}); free some space")
            self._failed = True

    def _write_cut(self, state: StateContent, place: TrainerPosition, tag: str) -> None:
        """Write and report the state of a checkpoint; an earlier attempt may have done so."""
        receipt = self._files.cut_written(tag) if self._cut_tag == "" else None
        self._cut_tag = tag
        self._announced = {number for number in self._announced if number > place.step and self._is_sync}
        try:
            receipt = receipt or self._files.write_cut(state, place, tag)
        except OSError as exc:
            what = f"trainer {self._env.rank}: its state cannot be written into checkpoint {tag} ({exc})"
            raise ProcessError(what, remedy="free some space on its node, or set ROOT_DIR to another disk") from exc
        self._supervisor.send("saved", **receipt)

    def _check_lost(self) -> None:
        """End a trainer that cannot go on, as it has no state: in sync the others need what it would compute."""
        step = self._client.step
        text = f"trainer {self._env.rank}: its state of step {step} is not on this node{self._damage}"
        if not self._client.had_state:
            return
        if not self._is_sync:
            print_line(f"warning: {text}; it starts as the program made it")
            return
        self._supervisor.send("state_lost", message=text)
        if self._supervisor.is_connected:
            print_line(f"{text}; the run goes back to the newest checkpoint")
            threading.Event().wait(_PATIENCE_S)
        raise ProcessError(text, remedy="start --resume continues from the newest checkpoint")


def _schedule(env: Environment) -> CutSchedule:
    saving = env.spec.saving
    return CutSchedule(saving.save_every if saving.checkpoints else None, saving.save_model_every or EACH_PASS)


def _restored_step(env: Environment) -> int:
    """Return the step of the checkpoint from which this epoch began, 0 without one."""
    point = env.spec.recover or env.spec.saving.resume
    return point.step if point is not None else 0


def _go_back(client: Pushes, place: TrainerPosition) -> None:
    """Let the client continue from a place, which is at most one push before its own."""
    if place.step == client.step:
        return
    client.step, client.next_pass, client.batch = place.step, place.pass_, place.batch
    client.position = place.cursor
