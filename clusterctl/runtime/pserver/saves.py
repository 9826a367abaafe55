"""The saves of one lane: which were requested, by which trainers, and which are done; and copies of its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from clusterctl.common.manifest import checkpoint_tag, pass_of, pass_tag, step_tag
from clusterctl.runtime.checkpoint.writer import Save, newest_cursors
from clusterctl.runtime.modes import CHECKPOINT, MODEL, check_tag
from clusterctl.runtime.pserver.lane_state import LaneState
from clusterctl.runtime.pserver.trainers import TrainerStates
from clusterctl.runtime.wire import messages as wire


@dataclass
class SaveBook:
    """The requested saves, by tag: first `asked` for, with the ranks that did, then `writing`, then done.

    A tag is saved once: at the end of a pass when all trainers have requested it, otherwise at the first request. That
    of a pass may be skipped instead: then the values are unsaved until the model of a later pass is saved.
    """

    asked: dict[str, set[int]] = field(default_factory=dict)
    writing: list[str] = field(default_factory=list)
    saved_step: int = 0
    skipped_last: bool = False
    _at_once: set[str] = field(default_factory=set)
    _done: set[str] = field(default_factory=set)
    _skipped: set[str] = field(default_factory=set)
    _waiters: dict[str, list[wire.Message]] = field(default_factory=dict)

    def ask(self, tag: str, message: wire.Message, at_pass_end: bool) -> bool:
        """Record that a trainer requested `tag`; return True if it is saved or skipped already."""
        if check_tag(tag) in self._done or tag in self._skipped:
            return True
        if tag not in self.writing:
            self.asked.setdefault(tag, set()).add(message.rank)
            if not at_pass_end:
                self._at_once.add(tag)
        return False

    def ask_for_all(self, tag: str) -> None:
        """Request `tag` on behalf of all trainers, which have left."""
        if tag not in self._done and tag not in self.writing:
            self.asked.setdefault(tag, set())
            self._at_once.add(tag)

    def due(self, active: set[int], force: bool) -> list[tuple[str, bool]]:
        """Return the tags to write now, each with True if all trainers ended a pass with it; they are `writing` now.

        With `force` also the tags that only some trainers requested.
        """
        due = [
            (tag, tag not in self._at_once)
            for tag, ranks in self.asked.items()
            if force or tag in self._at_once or active <= ranks
        ]
        for tag, _ in due:
            del self.asked[tag]
            self._at_once.discard(tag)
            self.writing.append(tag)
        return due

    def skip(self, tag: str) -> None:
        """Save nothing under `tag`, that of a pass, which is due."""
        self.writing.remove(tag)
        self._skipped.add(tag)
        self.skipped_last = True

    def wait(self, tag: str, message: wire.Message) -> None:
        """Keep `message` to be answered when `tag` is saved; it replaces an earlier one of the same trainer."""
        others = [m for m in self._waiters.get(tag, []) if m.rank != message.rank]
        self._waiters[tag] = [*others, message]

    def waiting(self) -> list[wire.Message]:
        return [message for messages in self._waiters.values() for message in messages]

    def unsaved_tag(self, trainers: TrainerStates, step: int) -> str | None:
        """Return the tag for the values of a step when all trainers have left; None if they are saved.

        All lanes have to choose the same one, so it depends on where the trainers were.
        """
        if step == self.saved_step and not self.skipped_last:
            return None
        passes = trainers.most_passes
        last, partial = pass_tag(max(0, passes - 1)), pass_tag(passes)
        return partial if trainers.have_begun(passes) or last in (*self._done, *self.writing) else last

    def finish(self, tag: str) -> list[wire.Message]:
        """Mark `tag` as saved; return the requests that waited for it.

        A lane without tables may not even have begun the save: the other lanes wrote the file without it.
        """
        self.asked.pop(tag, None)
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

    def due(self, force: bool) -> list[Save]:
        """Return the requested saves that are due now; with `force` also those that only some trainers requested.

        At the end of a pass there may be a model, a checkpoint, both or nothing to save.
        """
        if not self.book.asked:
            return []
        due = self.book.due(self._lane.trainers.active(), force)
        passes = self._lane.trainers.most_passes
        tags = []
        for tag, whole_pass in due:
            if whole_pass and not self._is_model(tag):
                self.book.skip(tag)
            else:
                tags.append(tag)
        if tags:
            self.book.saved_step = self._lane.step
            self.book.skipped_last &= all(pass_of(tag) is None for tag in tags)
        checkpoint = any(whole_pass for _, whole_pass in due) and self._is_checkpoint(passes)
        return self._save(Save("", self._lane.step, max(0, passes - 1)), tags, checkpoint)

    def at_cut(self, step: int, purpose: int) -> list[Save]:
        """Return the saves for the `purpose` of a cut that will be written; `step` is part of their tags."""
        if purpose & MODEL:
            self.book.saved_step = self._lane.step
        return self.copies(step, self._lane.trainers.passes, purpose)

    def copies(self, step: int, passes: int, purpose: int) -> list[Save]:
        """Return the same of a cut that may be dropped."""
        save = Save("", step, passes, at_cut=True)
        return self._save(save, [step_tag(step)] if purpose & MODEL else [], bool(purpose & CHECKPOINT))

    def _save(self, save: Save, tags: Sequence[str], checkpoint: bool) -> list[Save]:
        """Return `save` under each of the `tags`, and as a checkpoint if one is due, all with the same copies.

        They are complete once `LaneState.copying` is.
        """
        if not tags and not checkpoint:
            return []
        frozen = [table.freezing() for table in self._lane.set_tables().values()]
        self._lane.copying.begin([slices for _, slices in frozen])
        save = save._replace(tables=tuple(copy for copy, _ in frozen), pause_s=self._lane.copying.took_s)
        out = [save._replace(tag=tag, buffers=self._lane.buffers.at(self._lane.step)) for tag in tags]
        if checkpoint:
            trainers = self._lane.trainers
            own = save._replace(
                checkpoint=True,
                pass_=save.pass_ if save.at_cut else trainers.passes,
                cursors=trainers.cursors(),
                at_cut=True,
            )
            out.append(own._replace(tag=checkpoint_tag(save.step)))
        return out

    def _is_model(self, tag: str) -> bool:
        """Return True if the model of a pass is to be saved when all trainers have ended it."""
        pass_ = pass_of(tag)
        return pass_ is None or self._lane.save_model_every.is_pass(pass_ + 1)

    def _is_checkpoint(self, passes: int) -> bool:
        """Return True if there is a checkpoint at the end of a pass; only in sync mode do trainers end it together."""
        every = self._lane.save_every
        return self._lane.mode.name == "sync" and every is not None and every.is_pass(passes)


def joined(parts: Sequence[Save]) -> Save:
    """Return the parts of a save that the lanes of a pserver have made as one."""
    pieces = [part for part in parts if part.tables] or list(parts[-1:])
    tables = tuple(table for piece in pieces for table in piece.tables)
    latest = max(pieces, key=lambda piece: piece.step)
    cursors = newest_cursors([piece.cursors for piece in pieces])
    buffers = next((part.buffers for part in parts if part.buffers is not None), None)
    pause_s = max(piece.pause_s for piece in pieces)
    return latest._replace(tables=tables, cursors=cursors, pause_s=pause_s, buffers=buffers)
