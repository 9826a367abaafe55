"""The saves of one lane: which were requested, by which trainers, and which are done; and copies of its tables."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from clusterctl.common.manifest import pass_tag
from clusterctl.runtime.checkpoint.writer import Save
from clusterctl.runtime.modes import check_tag
from clusterctl.runtime.pserver.lane_state import LaneState, Output
from clusterctl.runtime.wire import messages as wire


@dataclass
class SaveBook:
    """The requested saves, by tag: first requested, then `writing`, then done.

    A tag is saved once: at the end of a pass when all trainers have requested it, otherwise at the first request.
    """

    writing: list[str] = field(default_factory=list)
    saved_step: int = 0
    _asked: dict[str, set[int]] = field(default_factory=dict)
    _at_once: set[str] = field(default_factory=set)
    _done: set[str] = field(default_factory=set)
    _waiters: dict[str, list[wire.Message]] = field(default_factory=dict)

    def ask(self, tag: str, message: wire.Message, at_pass_end: bool) -> bool:
        """Record that a trainer requested `tag`; return True if it is saved already."""
        if check_tag(tag) in self._done:
            return True
        if tag not in self.writing:
            self._asked.setdefault(tag, set()).add(message.rank)
            if not at_pass_end:
                self._at_once.add(tag)
        return False

    @property
    def has_requests(self) -> bool:
        """True if a tag is requested and not `writing` yet."""
        return bool(self._asked)

    def ask_for_all(self, tag: str) -> None:
        """Request `tag` on behalf of all trainers, which have left."""
        if tag not in self._done and tag not in self.writing:
            self._asked.setdefault(tag, set())
            self._at_once.add(tag)

    def due(self, active: set[int], force: bool) -> list[tuple[str, bool]]:
        """Return the tags to write now, each with True if all trainers ended a pass with it; they are `writing` now.

        With `force` also the tags that only some trainers requested.
        """
        due = [
            (tag, tag not in self._at_once)
            for tag, ranks in self._asked.items()
            if force or tag in self._at_once or active <= ranks
        ]
        for tag, _ in due:
            del self._asked[tag]
            self._at_once.discard(tag)
            self.writing.append(tag)
        return due

    def wait(self, tag: str, message: wire.Message) -> None:
        """Keep `message` to be answered when `tag` is saved; it replaces an earlier one of the same trainer."""
        others = [m for m in self._waiters.get(tag, []) if m.rank != message.rank]
        self._waiters[tag] = [*others, message]

    def waiting(self) -> list[wire.Message]:
        return [message for messages in self._waiters.values() for message in messages]

    def unfinished_pass(self, passes: int) -> str:
        """Return the tag for unsaved values when all trainers have left after `passes` whole passes."""
        last, partial = pass_tag(max(0, passes - 1)), pass_tag(passes)
        return partial if last in self._done or last in self.writing else last

    def finish(self, tag: str) -> list[wire.Message]:
        """Mark `tag` as saved; return the requests that waited for it.

        A lane without tables may not even have begun the save: the other lanes wrote the file without it.
        """
        self._asked.pop(tag, None)
        self._at_once.discard(tag)
        if tag in self.writing:
            self.writing.remove(tag)
        self._done.add(tag)
        return self._waiters.pop(tag, [])


class Saver:
    """Makes the saves of a lane that are due according to `book`."""

    def __init__(self, lane: LaneState) -> None:
        self.book = SaveBook()
        self._lane = lane

    def due(self, force: bool) -> list[Output]:
        """Return the requested saves that are due now; with `force` also those that only some trainers requested."""
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
        """Return a checkpoint of this moment, with the trainers' cursors; `moment` has copies that were just made."""
        trainers = self._lane.trainers
        made = replace(moment or self._moment(), tag=f"step-{step:09d}", step=step, pass_=trainers.passes)
        return replace(made, checkpoint=True, cursors=trainers.cursors())

    def _moment(self) -> Save:
        """Copy all tables, for saves of any tag."""
        began = time.perf_counter()
        tables = tuple(table.frozen() for _, table in sorted(self._lane.tables.items()))
        return Save("", self._lane.step, 0, tables, pause_s=time.perf_counter() - began)

    def _is_checkpoint(self, passes: int) -> bool:
        """Return True if the save of a pass is also a checkpoint; only in sync mode do trainers end passes together."""
        every = self._lane.save_every
        return self._lane.mode.name == "sync" and every is not None and every.is_pass(passes)
