"""The saves of one lane: which were asked for, by whom, which are done; and the copies of its tables that they take."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from clusterctl.runtime.checkpoint.writer import Save
from clusterctl.runtime.modes import check_tag
from clusterctl.runtime.pserver.lane_state import LaneState, Output
from clusterctl.runtime.wire import messages as wire


@dataclass
class SaveBook:
    """A tag is saved once: at the end of a pass when all trainers have asked, otherwise at the first call.

    A tag is asked for, then `writing`, then done.
    """

    writing: list[str] = field(default_factory=list)
    saved_step: int = 0
    _asked: dict[str, set[int]] = field(default_factory=dict)
    _at_once: set[str] = field(default_factory=set)
    _done: set[str] = field(default_factory=set)
    _waiters: dict[str, list[wire.Message]] = field(default_factory=dict)

    def ask(self, tag: str, message: wire.Message, at_pass_end: bool) -> bool:
        """Notes that a trainer asks for `tag`; True when it is saved already."""
        if check_tag(tag) in self._done:
            return True
        if tag not in self.writing:
            self._asked.setdefault(tag, set()).add(message.rank)
            if not at_pass_end:
                self._at_once.add(tag)
        return False

    @property
    def has_requests(self) -> bool:
        """Whether a tag is asked for and not `writing` yet."""
        return bool(self._asked)

    def ask_for_all(self, tag: str) -> None:
        """Nobody is there to ask for `tag`, which is to be saved all the same."""
        if tag not in self._done and tag not in self.writing:
            self._asked.setdefault(tag, set())
            self._at_once.add(tag)

    def due(self, active: set[int], force: bool) -> list[tuple[str, bool]]:
        """The tags to write now, which are `writing` until `finish`, and whether all trainers ended a pass with it.

        With `force` also what only some asked for.
        """
        found = [
            (tag, tag not in self._at_once)
            for tag, ranks in self._asked.items()
            if force or tag in self._at_once or active <= ranks
        ]
        for tag, _ in found:
            del self._asked[tag]
            self._at_once.discard(tag)
            self.writing.append(tag)
        return found

    def wait(self, tag: str, message: wire.Message) -> None:
        """`message` is answered when `tag` is saved; a repeat of it replaces the earlier one."""
        others = [m for m in self._waiters.get(tag, []) if m.rank != message.rank]
        self._waiters[tag] = [*others, message]

    def waiting(self) -> list[wire.Message]:
        return [message for messages in self._waiters.values() for message in messages]

    def unfinished_pass(self, passes: int) -> str:
        """The tag for what is not saved yet when everyone has left after `passes` whole passes."""
        last, partial = f"pass-{max(0, passes - 1):05d}", f"pass-{passes:05d}"
        return partial if last in self._done or last in self.writing else last

    def finish(self, tag: str) -> list[wire.Message]:
        """Marks `tag` as saved; returns who waited for it."""
        if tag in self.writing:
            self.writing.remove(tag)
        self._done.add(tag)
        return self._waiters.pop(tag, [])


class Saver:
    """Takes the saves of a lane that are due; `book` knows which are."""

    def __init__(self, lane: LaneState) -> None:
        self.book = SaveBook()
        self._lane = lane

    def due(self, force: bool) -> list[Output]:
        """The saves that trainers asked for and that are due now; with `force` also what only some asked for."""
        lane = self._lane
        out: list[Output] = []
        due = self.book.due(lane.trainers.active(), force) if self.book.has_requests else []
        moment = self._moment() if due else None
        for tag, whole_pass in due:
            assert moment is not None
            passes = lane.trainers.most_passes
            out.append(replace(moment, tag=tag, pass_=max(0, passes - 1)))
            self.book.saved_step = lane.step
            if whole_pass and self._is_checkpoint(passes):
                out.append(self.checkpoint(lane.step, moment))
        return out

    def checkpoint(self, step: int, moment: Save | None = None) -> Save:
        """A checkpoint of this moment, with the trainers' cursors; `moment` has copies made just now."""
        trainers = self._lane.trainers
        made = replace(moment or self._moment(), tag=f"step-{step:09d}", step=step, pass_=trainers.passes)
        return replace(made, checkpoint=True, cursors=trainers.cursors())

    def _moment(self) -> Save:
        """Copies of all tables as they are now, for saves of any tag."""
        began = time.perf_counter()
        tables = tuple(table.frozen() for _, table in sorted(self._lane.tables.items()))
        return Save("", self._lane.step, 0, tables, pause_s=time.perf_counter() - began)

    def _is_checkpoint(self, passes: int) -> bool:
        """Whether the save at the end of a pass is a checkpoint too: only where trainers end passes together."""
        every = self._lane.save_every
        return self._lane.mode.name == "sync" and every is not None and every.is_pass(passes)
