"""The files of a trainer's state: the newest ones on its node, and one in each checkpoint.

Each is a safetensors file. Its metadata has, as strings, `format`, `job`, `run`, `rank`, `trainers`, `epoch`, `mode`,
`seed`, the place (`step`, the pushes before it; `pass` and `batch`, the batch after it; `cursor`, JSON), `boot`, which
changes when the machine restarts, `between` and `loops` (see `TrainerPosition`; older versions have neither), and
`tree`: a JSON object with an entry for each thing that was kept. The tensors of a thing are `NAME/PATH`, or `NAME` if
it is one.

The newest ones are in `runs/RUN/state/`. They are not durable, and one that an earlier boot has written is not used.
That of a checkpoint is `checkpoints/TAG/trainer-00000.safetensors`, beside the pieces of pservers. It also has `tag`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from clusterctl.common.procfs import boot_id
from clusterctl.runtime.arrays import Array
from clusterctl.runtime.checkpoint.model import checksum
from clusterctl.runtime.checkpoint.remote import open_saved_state, run_peers
from clusterctl.runtime.checkpoint.safetensors import TensorEntry, TensorFile, write_tensors
from clusterctl.runtime.environment import Environment
from clusterctl.runtime.errors import ModelError, UseError

FORMAT = "clusterctl-state/1"
_KEPT = 2  # one would do: a file is replaced only when its successor is whole


class TrainerPosition(NamedTuple):
    """Where a trainer is: the pushes that it has made, its next batch, and the value of `ps.cursor` before it.

    The batch is number 0 of the next pass only when `on_pass` of the pass before has run. `is_between` means that what
    the program does after the loop of the pass before is still to come; `loops` is what `Loops.record` returned.
    """

    step: int
    pass_: int
    batch: int
    cursor: Any = None
    is_between: bool = False
    loops: Any = None


class StateContent(NamedTuple):
    """A trainer's state: JSON for each thing by name, and the tensors that it names."""

    tree: Mapping[str, Any]
    entries: Sequence[TensorEntry]

    @property
    def bytes(self) -> int:
        return len(json.dumps(self.tree)) + sum(entry.read().nbytes for entry in self.entries)


class Loadable(Protocol):
    """A state that a thing can load. `path` is that of its file."""

    path: Path
    tree: dict[str, Any]

    def tensor(self, name: str) -> tuple[str, Array]:
        """Return the type of a tensor, such as "F32", and its values."""
        ...


class CopiedState:
    """A copy of a state in memory."""

    path = Path()

    def __init__(self, state: StateContent) -> None:
        self.tree = dict(state.tree)
        self._tensors = {entry.name: (entry.dtype, entry.read().copy()) for entry in state.entries}

    def tensor(self, name: str) -> tuple[str, Array]:
        return self._tensors[name]


class SavedState:
    """An open file of a state. Raises ModelError unless it is whole."""

    def __init__(self, file: TensorFile) -> None:
        self._file = file
        self._file.require_whole()
        self.path = file.path
        about = self._file.metadata
        if about.get("format") != FORMAT:
            raise ModelError(f"{self.path} is not the state of a trainer")
        try:
            self.tree: dict[str, Any] = dict(json.loads(about["tree"]))
            batch, cursor = int(about["batch"]), json.loads(about["cursor"])
            is_between = about["between"] == "1" if "between" in about else batch == 0  # older states lack it
            loops = json.loads(about.get("loops", "null"))
            self.place = TrainerPosition(int(about["step"]), int(about["pass"]), batch, cursor, is_between, loops)
            self.rank, self.trainers, self.epoch = (int(about[name]) for name in ("rank", "trainers", "epoch"))
        except (KeyError, RecursionError, TypeError, ValueError) as exc:
            raise ModelError(f"{self.path}: the metadata is damaged ({exc!r})") from exc
        self.boot = about.get("boot")

    def tensor(self, name: str) -> tuple[str, Array]:
        """Return the type of a tensor, such as "F32", and its values, read-only (see `safetensors.DTYPES`)."""
        array = self._file.tensor(name)
        return self._file.dtype(name), array


class StateFiles:
    """The files of this process's trainer in one epoch of a run."""

    def __init__(self, env: Environment, epoch: int) -> None:
        self._env = env
        self._epoch = epoch
        self._directory = env.state_dir
        self._stem = f"trainer-{env.rank:05d}-{epoch:05d}-"
        self._written: list[Path] = []

    def newest(self) -> list[SavedState]:
        """Return the states of this epoch, newest first. Files that are of no use any more are removed."""
        for path in self._env.checkpoint_dir.glob(f"*/.{self._of_cut('').name}-*"):
            path.unlink(missing_ok=True)  # half written
        found: list[SavedState] = []
        for path in self._directory.glob(f"*trainer-{self._env.rank:05d}-*"):
            state = _open(path) if path.name.startswith(self._stem) else None
            if state is None or state.boot != boot_id():
                path.unlink(missing_ok=True)  # half written, damaged, or of an earlier epoch or boot
            else:
                found.append(state)
        found.sort(key=lambda state: state.place.step, reverse=True)
        self._written = [state.path for state in reversed(found)]
        return found

    def in_cuts(self) -> list[SavedState]:
        """Return the states of this epoch that are in checkpoints on this node, newest first. Complete or not."""
        states = [_open(path) for path in self._env.checkpoint_dir.glob(f"*/{self._of_cut('').name}")]
        own = [state for state in states if state is not None and state.epoch == self._epoch]
        return sorted(own, key=lambda state: state.place.step, reverse=True)

    def restored(self) -> SavedState | None:
        """Return the state of the checkpoint from which this epoch began. Raises ModelError if it is damaged."""
        if not (self._env.spec.recover or self._env.spec.saving.resume):
            return None

        file = open_saved_state(self._env, run_peers(self._env))
        if file is None:
            return None
        state = SavedState(file)
        return state if (state.rank, state.trainers) == (self._env.rank, self._env.trainers) else None

    def write(self, state: StateContent, place: TrainerPosition) -> None:
        """Write the state at a place, atomically, and remove the oldest."""
        path = self._directory / f"{self._stem}{place.step:012d}.safetensors"
        write_tensors(path, state.entries, self._metadata(state, place), durable=False)
        if path not in self._written:
            self._written.append(path)
        for old in self._written[:-_KEPT]:
            old.unlink(missing_ok=True)
        del self._written[:-_KEPT]

    def write_cut(self, state: StateContent, place: TrainerPosition, tag: str) -> dict[str, Any]:
        """Write the state into a checkpoint, durably; return the receipt, the fields of a `saved` event."""
        path = self._of_cut(tag)
        about = {**self._metadata(state, place), "tag": tag}
        return self._receipt(tag, place, *write_tensors(path, state.entries, about))

    def cut_written(self, tag: str) -> dict[str, Any] | None:
        """Return the receipt of the file that an earlier attempt wrote in this epoch, or None."""
        path = self._of_cut(tag)
        state = _open(path) if path.is_file() else None
        if state is None or state.epoch != self._epoch:
            return None
        return self._receipt(tag, state.place, *checksum(path))

    def _of_cut(self, tag: str) -> Path:
        return self._env.checkpoint_dir / tag / f"trainer-{self._env.rank:05d}.safetensors"

    def _metadata(self, state: StateContent, place: TrainerPosition) -> dict[str, str]:
        env = self._env
        facts = {"job": env.job, "run": env.run, "rank": env.rank, "trainers": env.trainers, "epoch": self._epoch}
        facts.update(mode=env.spec.training.mode, seed=env.seed, boot=boot_id(), format=FORMAT)
        facts.update({"step": place.step, "pass": place.pass_, "batch": place.batch})
        facts["between"] = int(place.is_between)
        texts = {"cursor": json.dumps(place.cursor), "loops": json.dumps(place.loops), "tree": json.dumps(state.tree)}
        return {**{name: str(value) for name, value in facts.items()}, **texts}

    def _receipt(self, tag: str, place: TrainerPosition, size: int, digest: str) -> dict[str, Any]:
        env = self._env
        facts = {"job": env.job, "run": env.run, "tag": tag, "pass": place.pass_, "step": place.step}
        facts.update(mode=env.spec.training.mode, seed=env.seed, trainer=env.rank, trainers=env.trainers)
        return {**facts, "file": self._of_cut(tag).name, "bytes": size, "sha256": digest, "checkpoint": True}


def _open(path: Path) -> SavedState | None:
    try:
        return SavedState(TensorFile(path))
    except ModelError:
        return None


def entry_of(name: str, dtype: str, array: Array) -> TensorEntry:
    """Return a tensor to write, of a type in `safetensors.DTYPES`, whose values are those that `array` has then."""
    return TensorEntry(name, dtype, array.shape, functools.partial(_same, array))


def _same(array: Array) -> Array:
    return array


class AssignedValues:
    """`assigned` are the tables by name that have such values, `tables` all that may."""

    name = "_assigned"

    def __init__(self, assigned: dict[str, Any], tables: Mapping[str, Any]) -> None:
        self._assigned = assigned
        self._tables = tables

    def take(self) -> StateContent | None:
        if not self._assigned:
            return None
        entries = [entry_of(f"{self.name}/{name}", "F32", table.value) for name, table in self._assigned.items()]
        return StateContent({self.name: [*self._assigned]}, entries)

    def load(self, saved: Loadable) -> None:
        for name in saved.tree[self.name]:
            table = self._tables.get(name)
            if table is None:
                raise UseError(
                    f"the trainer's state has a value that was assigned to table {name!r}, not declared yet",
                    remedy="declare the tables of ps.assign before the loop",
                )
            table.value[...] = saved.tensor(f"{self.name}/{name}")[1].reshape(table.value.shape)
            self._assigned[name] = table


class Marker:
    """Makes a program keep a state: it may assign values in its loop."""

    name = "_assigns"

    def take(self) -> StateContent:
        return StateContent({self.name: True}, [])

    def load(self, saved: Loadable) -> None:
        pass
