"""A trainer's session: tables, steps and pushes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Union

from clusterctl.runtime import wire
from clusterctl.runtime.control import Control
from clusterctl.runtime.environment import Environment
from clusterctl.runtime.errors import NotAvailableError, RefusedError, UseError
from clusterctl.runtime.handles import Dense, Embedding
from clusterctl.runtime.initial import Initial, uniform, zeros
from clusterctl.runtime.link import Link
from clusterctl.runtime.loop import (
    Reader,
    Turn,
    checked_loss,
    checked_passes,
    checked_samples,
    own_batches,
    pass_rng,
    with_last,
)
from clusterctl.runtime.progress import Progress, say
from clusterctl.runtime.rules import Rule
from clusterctl.runtime.saving import check_tag
from clusterctl.runtime.spec import TableSpec

Handle = Union[Dense, Embedding]


class Session:
    """What `connect()` returns: `rank`, `trainers`, `output_dir`, `step` (global steps done), and the methods below."""

    def __init__(self, env: Environment, link: Link, control: Control, load: str | None) -> None:
        self.rank = 0 if env.local else env.rank
        self.trainers = env.trainers
        self.output_dir = env.output_dir
        self.pservers = link.pservers
        self._env = env
        self._link = link
        self._load = load
        self._attempt = env.attempt
        self._requests = 0
        self._handles: dict[int, Handle] = {}
        self._dense_bytes = 0
        self._turn: Turn | None = None
        self._progress = Progress(control)
        self._skip = 0
        self._first_pass = 0
        self._rejoins = False
        self._open_pass: int | None = None
        self._versions: dict[int, int] = {}
        self._hello()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        clean = error is None or (isinstance(error, SystemExit) and error.code in (None, 0))
        try:
            if clean:
                self._progress.flush(self.step)
                self._progress.flush_log()
                self._ask_all(wire.BYE)
        finally:
            self._link.close()

    # Tables

    def dense(self, name: str, shape: int | Sequence[int], rule: Rule, init: Initial | None = None) -> Dense:
        """A dense float32 table of `shape`; without `init` it starts as zeros. Every trainer declares it alike."""
        sizes = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
        spec = self._spec(name, "dense", sizes, rule, init or zeros(), None)
        handle = Dense(self, spec)
        self._dense_bytes += handle.value.nbytes
        self._handles[spec.key] = handle
        handle.pull()
        return handle

    def embedding(
        self, name: str, dim: int, rule: Rule, init: Initial | None = None, rows: int | None = None
    ) -> Embedding:
        """A sparse float32 table of width `dim`; ids are any int64, or 0..rows-1. Without `init`: uniform(0.1)."""
        spec = self._spec(name, "sparse", (int(dim),), rule, init or uniform(0.1), rows)
        handle = Embedding(self, spec)
        self._handles[spec.key] = handle
        return handle

    def _spec(
        self, name: str, kind: str, shape: tuple[int, ...], rule: Rule, init: Initial, rows: int | None
    ) -> TableSpec:
        if not isinstance(rule, Rule) or not isinstance(init, Initial):
            raise UseError(
                f"table {name!r}: rule={rule!r}, init={init!r}",
                remedy="give such as Adagrad(0.05) and uniform(0.1)",
            )
        spec = TableSpec(name, kind, shape, rule, init, rows, self._load)
        replies = self._ask_all(wire.CREATE, parts=[wire.json_part(spec.to_json())])
        if self.rank == 0 and any(reply.json().get("initial") for reply in replies.values()):
            say(f"table {name!r} is not in {self._load}: it starts from its initial values")
        return spec

    # Steps

    def steps(
        self,
        reader: Reader,
        passes: int,
        shard: bool = False,
        accumulate: int = 1,
        prefetch: int = 0,
        ids: Mapping[Embedding, Callable[[Any], Any]] | None = None,
        on_pass: Callable[[int], Any] | None = None,
    ) -> Iterator[Any]:
        """Yields the batches of `passes` passes; end each with one `push`.

        `reader(pass_, rng)` yields this trainer's batches, or with `shard=True` everybody's, of which each trainer
        takes every M-th. One batch is read ahead, so a reader must not reuse the memory of the one before.
        `on_pass(pass_)` runs on every trainer after the pass's last update and before its save. Passes number
        through the run: a second loop goes on where the first ended. A batch may be left without a push.
        """
        if accumulate != 1 or prefetch != 0 or ids:
            raise NotAvailableError("accumulate, prefetch and ids are not available in this version")
        if not callable(reader):
            raise UseError(f"reader={reader!r} cannot be called", remedy="give reader(pass_, rng) that yields batches")
        return self._run(reader, checked_passes(passes), shard, on_pass)

    def _run(self, reader: Reader, passes: int, shard: bool, on_pass: Callable[[int], Any] | None) -> Iterator[Any]:
        if self._open_pass is not None:  # an earlier loop was left by break, or an earlier attempt died in between
            self._finish_pass(flagged=self._rejoins)
            self._save_pass()
            self._first_pass = self._first_pass if self._rejoins else self._next_pass
        self._rejoins = False
        first, self._first_pass = self._next_pass, self._first_pass + passes
        for pass_ in range(first, self._first_pass):
            self._open_pass = pass_
            self._progress.begin_pass(pass_)
            yield from self._batches(reader, pass_, shard)
            self._progress.end_pass(self.step)
            if on_pass is not None:
                on_pass(pass_)
            self._save_pass()

    def _batches(self, reader: Reader, pass_: int, shard: bool) -> Iterator[Any]:
        rng = pass_rng(self.seed, self.rank, pass_, shard)
        every, offset = (self.trainers, self.rank) if shard else (1, 0)
        own = own_batches(reader, pass_, rng, every, offset)
        skip, self._skip = self._skip, 0
        turn = None
        for number, batch, last in with_last(own, skip):
            turn = self._turn = Turn(pass_, number, last)
            yield batch
        self._turn = None
        self._finish_pass(flagged=turn is not None and turn.pushed)

    def _finish_pass(self, flagged: bool) -> None:
        """Makes this trainer's end of the open pass known; in sync mode takes empty steps until all have ended it."""
        self._turn = None
        pass_ = self._open_pass or 0
        while not flagged or (self.mode == "sync" and self._passes_done <= pass_):
            self._push_all([], Turn(pass_, self._batch, last=True), 0)
            flagged = True

    def _save_pass(self) -> None:
        self._progress.flush_log()
        pass_ = self._open_pass or 0
        self._ask_all(wire.SAVE, flags=wire.END_OF_PASS, parts=[wire.json_part({"tag": f"pass-{pass_:05d}"})])
        self._open_pass, self._next_pass, self._batch = None, pass_ + 1, 0

    def push(self, gradients: Mapping[Handle, Any], samples: int, loss: float | None = None) -> None:
        """Ends the step of the current batch, and refreshes the `value` of dense tables.

        `gradients` maps handles to means over the batch: an array of the table's shape, or `(ids, rows)`. `samples`
        (an integer >= 0) weighs them among the trainers; with 0 they change nothing. Returns when the step is applied.
        """
        turn = self._turn
        if turn is None:
            raise UseError("push outside of ps.steps(...)", remedy="push once for each batch that ps.steps yields")
        if turn.pushed:
            raise UseError(f"a second push for batch {turn.batch} of pass {turn.pass_}", remedy="push once per batch")
        count, value = checked_samples(samples, self.rank, self.step), checked_loss(loss)
        parts = self._gradient_parts(gradients)
        if value is not None and not abs(value) < float("inf"):
            self._progress.not_finite(self.step, f"the loss of trainer {self.rank}")
        turn.pushed = True
        self._push_all(parts, turn, count)
        self._progress.stepped(self.step, count, value)

    def _gradient_parts(self, gradients: Mapping[Handle, Any]) -> list[list[wire.Part]]:
        merged: list[list[wire.Part]] = [[] for _ in range(self.pservers)]
        for handle, gradient in gradients.items():
            if not isinstance(handle, (Dense, Embedding)) or self._handles.get(handle.spec.key) is not handle:
                raise UseError(f"push of {handle!r}, which is no table of this session")
            parts, finite = handle.gradient(gradient)
            if not finite:
                self._progress.not_finite(self.step, f"the gradient of table {handle.name!r} of trainer {self.rank}")
            for pserver, more in enumerate(parts):
                merged[pserver] += more
        return merged

    def _push_all(self, parts: Sequence[list[wire.Part]], turn: Turn, samples: int) -> None:
        flags = wire.LAST_OF_PASS if turn.last else 0
        cursor = {
            "pass_": turn.pass_,
            "batch": turn.batch,
            "flags": flags,
            "samples": samples,
            "step": self.step,
        }
        requests = {}
        for pserver in range(self.pservers):
            own = list(parts[pserver]) if parts else []
            requests[pserver] = self._request(wire.PUSH, version=self._versions[pserver], parts=own, **cursor)
        replies = self._exchange(requests)
        for pserver, reply in replies.items():
            self._versions[pserver] = reply.version
            self._refresh(reply)
        self.step += 1
        self._batch = turn.batch + 1
        self._passes_done = min(reply.pass_ for reply in replies.values())

    def _refresh(self, reply: wire.Message) -> None:
        for part in reply.parts:
            handle = self._handles.get(part.table)
            if isinstance(handle, Dense):
                handle.refresh(part)

    # Saves and figures

    def save(self, tag: str) -> None:
        """Saves all tables, as they are after the current step, under `output_dir/tag/`; the first call wins."""
        if check_tag(tag).startswith("pass-"):
            raise UseError(f"tag {tag!r} is kept for the saves at the end of passes", remedy="choose another name")
        self._ask_all(wire.SAVE, parts=[wire.json_part({"tag": tag})])

    def log(self, weight: float = 1, **numbers: float) -> None:
        """Reports named numbers; over trainers and time they are averaged by `weight`."""
        try:
            values = {name: float(number) for name, number in numbers.items()}
            self._progress.log(self.step, values, float(weight))
        except (TypeError, ValueError) as exc:
            raise UseError(f"ps.log takes numbers, got {numbers!r}") from exc

    # Requests

    def pull(self, asks: Mapping[int, list[wire.Part]]) -> dict[int, list[wire.Part]]:
        """Asks each pserver for parts at the current step; dense ones refresh their handles. For handles only."""
        version = self.step if self.mode == "sync" else wire.NEWEST
        replies = self._exchange({p: self._request(wire.PULL, version=version, parts=a) for p, a in asks.items()})
        for pserver, reply in replies.items():
            self._versions[pserver] = reply.version
            self._refresh(reply)
        return {pserver: reply.parts for pserver, reply in replies.items()}

    def _hello(self) -> None:
        self._epoch = 0
        replies = self._ask_all(wire.HELLO, parts=[wire.json_part({"trainers": self.trainers})])
        facts = {pserver: reply.json() for pserver, reply in replies.items()}
        for pserver, said in facts.items():
            if (said["pserver"], said["pservers"]) != (pserver, self.pservers):
                raise RefusedError(
                    f"pserver {pserver} of {self.pservers} says that it is {said['pserver']} of {said['pservers']}"
                )
        earliest = min(facts.values(), key=lambda said: int(said["step"]))
        self.mode, self.seed = str(earliest["mode"]), int(earliest["seed"])
        self.step, self._next_pass = int(earliest["step"]), int(earliest["pass"])
        self._skip = self._batch = int(earliest["batch"])
        self._passes_done = min(int(said["passes"]) for said in facts.values())
        self._rejoins = self._passes_done < self._next_pass
        self._open_pass = self._next_pass - 1 if self._rejoins else None
        self._epoch = next(iter(replies.values())).epoch
        self._versions = dict.fromkeys(range(self.pservers), self.step)

    def _ask_all(self, kind: int, **fields: Any) -> dict[int, wire.Message]:
        return self._exchange({p: self._request(kind, **fields) for p in range(self.pservers)})

    def _request(self, kind: int, **fields: Any) -> wire.Message:
        self._requests += 1
        return wire.Message(kind, self.rank, self._requests, self._epoch, self._attempt, **fields)

    def _exchange(self, requests: Mapping[int, wire.Message]) -> dict[int, wire.Message]:
        began = time.monotonic()
        replies = self._link.exchange(requests, self._dense_bytes)
        held_s = max((reply.held_us for reply in replies.values()), default=0) / 1e6
        self._progress.blocked(time.monotonic() - began, held_s)
        return replies
