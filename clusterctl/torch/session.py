"""`connect()`, and the session that it returns: that of the runtime with `distribute`, `outer` and `loader`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, TypeVar

from clusterctl.runtime import connector
from clusterctl.runtime.checkpoint.safetensors import TensorEntry
from clusterctl.runtime.errors import UseError
from clusterctl.runtime.state.buffers import BufferSender
from clusterctl.runtime.state.loops import Batches, Site
from clusterctl.runtime.trainer.batches import OnPass, StepContext, whole_number
from clusterctl.runtime.trainer.packing import Handle
from clusterctl.torch.distribution import Distribution
from clusterctl.torch.loading import Loading
from clusterctl.torch.outer import OuterSession
from clusterctl.torch.sources import LoaderSource, source_of
from clusterctl.torch.state import (
    BUFFERS,
    GRADIENTS,
    RATES,
    Thing,
    buffers_of,
    entries_of,
    gradients_of,
    rates_of,
    saved_buffers,
    unsaved_scheduler,
)

Model = TypeVar("Model")
Optimizer = TypeVar("Optimizer")


def connect(load: str | None = None, *, ignore: Sequence[str] = ()) -> Session:
    """Join the run as `clusterctl.runtime.connect` does; the session also has `distribute`, `outer` and `loader`."""
    return connector.join(Session, load, ignore)


class Session(OuterSession):
    """A session for torch models. Not thread-safe."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._distribution: Distribution | None = None
        self._source: LoaderSource | None = None
        self._sender: BufferSender | None = None  # of a model that has buffers
        self._things: list[Any] = []
        self._is_on_course = False  # from the first loop that continues
        self._lr: Mapping[Any, float] | None = None  # of the first push, empty once they changed

    def distribute(self, model: Model, optimizer: Optimizer) -> tuple[Model, Optimizer]:
        """Make a dense table of each parameter of the optimizer, change both objects in place, and return them.

        `model` is a torch.nn.Module, `optimizer` a new SGD, Adagrad, Adam or AdamW of float32 parameters of the model.
        Parameters start from the values of rank 0, or from those of a checkpoint or a loaded model. From then on
        `optimizer.step(samples=None, loss=None)` ends the step of a batch: it pushes the gradients (means over the
        samples) with the groups' current `lr`, and copies the new values into the parameters. Raises UseError for
        anything that would give other numbers than torch; then both objects are as before.
        """
        self._guard.check("ps.distribute")
        if self.mode == "geo":
            raise UseError("ps.distribute does not work in geo mode", remedy="set MODE to sync, async or ssp")
        self._check_first("ps.distribute")
        self._add_buffers(model)
        given = (self._dense_at, self.embedding, self._push_batches, model, optimizer)
        self._distribution = Distribution(*given, is_sync=self.mode == "sync")
        self._trained_by = "ps.distribute"
        self._states.add(RATES, rates_of(optimizer), late=True)
        self._keep_state_of(model, optimizer)
        return model, optimizer

    def _add_buffers(self, model: Any) -> None:
        """Raise TableError if a buffer of a model and a table would be saved under the same name."""
        for name in saved_buffers(model) if hasattr(model, "named_buffers") else ():
            self._names.add_buffer(name)

    def _keep_state_of(self, model: Any, optimizer: Any) -> None:
        self._optimizer, buffers = optimizer, buffers_of(model)
        if buffers is not None:
            self._states.add(BUFFERS, buffers)
            self._sender = BufferSender(self._client, self._states.cuts, lambda: self._buffers_of(model))
        self._states.add(GRADIENTS, gradients_of(optimizer, self._counts), late=True)

    def keep(self, name: str, thing: Any) -> None:
        """Make a thing part of this trainer's state, under a name of its own, and load its state if some was saved.

        `thing` has `state_dict` and `load_state_dict`, or is a torch.Generator. Call it before the loop, for each
        scheduler, GradScaler or average of weights. The state may have tensors, arrays, numbers, strings, None, and
        lists, tuples and dicts of these. Raises UseError for anything else, or if the saved state does not fit.
        """
        self._guard.check("ps.keep")
        if self._open_pass is not None and not self._rejoins:
            raise UseError(f"ps.keep({name!r}, ...) in a loop", remedy="call it before the loop")
        self._states.add(name, Thing(name, thing))
        self._things.append(thing)

    def loader(
        self,
        data: Any,
        batch_size: int | None = None,
        passes: int = 1,
        *,
        shuffle: bool = False,
        shard: bool = True,
        on_pass: OnPass | None = None,
        num_workers: int = 0,
        **options: Any,
    ) -> Iterator[Any]:
        """Yield this trainer's batches of `passes` passes; end each with one `optimizer.step()`, or none.

        `data` is a Dataset (anything with `len` and integer indices) or an IterableDataset, whose batches have
        `batch_size` samples for each trainer, or a DataLoader. With `shard=True` all trainers read the same batches
        in the same order, and each takes its share; with `shard=False` all are this trainer's own. `options` are those
        of a DataLoader: collate_fn, drop_last, pin_memory, prefetch_factor, timeout, worker_init_fn and
        multiprocessing_context.

        The global generators of torch, numpy and python are seeded from SEED, rank, pass and batch, before a batch is
        read and before the loop gets it. Batches of others, and those that count already, are not read from a Dataset;
        an IterableDataset is read from its start. `on_pass` and passes are as in `steps`.
        """
        self._guard.check("ps.loader")
        number = whole_number("passes", passes, 0)
        loading = Loading.checked(data, batch_size, shuffle, num_workers, options)
        share_of = self._client.share_of if shard else None
        source = source_of(loading, self.seed, self.rank, share_of)

        def begun(first: int) -> LoaderSource:
            self._accumulate, self._clip, self._prefetcher.ids_of, self._sharded = 1, None, {}, shard
            self._source = source
            return source

        def at_end(pass_: int) -> None:
            source.seed_end(pass_)
            if on_pass is not None:
                on_pass(pass_)

        def begin(site: Site) -> Iterator[Any]:
            yield from self._counted(self._run(site, begun, number, at_end))
            source.seed_after(self._loops.first_pass)

        return Batches(begin)

    def _push_batches(
        self, gradients: Mapping[Handle, Any], samples: int | None, loss: Any, rates: Mapping[Handle, float]
    ) -> None:
        """Push for all batches of `loader` since the last push; without `samples`, theirs count."""
        self._guard.check("optimizer.step")
        context = self._context
        if context is None:
            raise UseError("optimizer.step() outside ps.loader(...)", remedy="call it once for a batch of ps.loader")
        if context.pushed:
            raise UseError(
                f"a second optimizer.step() for batch {context.batch} of pass {context.pass_}",
                remedy="call it once per batch",
            )
        count = self._samples_of(samples, "optimizer.step")
        self._before_push(rates)
        self.push(gradients, count, loss, rates)
        self._counts.clear()

    def _prefetch(self, context: StepContext) -> None:
        """Request the rows of the next batch, for embeddings to which a part of each batch is passed.

        In sync mode the rows have the values of their step, as if they were requested then.
        """
        if self.mode != "sync" or self._distribution is None or self._source is None:
            return
        for rows in self._distribution.rows:
            ids = rows.ids.following(self._source.batch, self._source.read_ahead)
            if ids is not None:
                with contextlib.suppress(UseError):  # the program need not pass them
                    self._parameters.prefetch(rows.table, rows.table.id_batch(ids), 1)

    def _buffers_of(self, model: Any) -> list[TensorEntry]:
        entries = entries_of(model)
        self._add_buffers(model)
        return entries

    def _save_pass(self, *, repeated: bool = False) -> None:
        if self._sender is not None:
            self._sender.send()
        super()._save_pass(repeated=repeated)

    def save(self, tag: str) -> None:
        self._guard.check("ps.save")
        if self._distribution is not None and self._is_on_course:
            self._distribution.check()
        self._end_broken_round()
        if self._sender is not None:
            self._sender.send()
        super().save(tag)

    def _leave(self, say: Callable[[], None] | None) -> None:
        try:
            if say is not None:
                self._guard.check("leaving the run")
                self._end_open_round()
                if self._sender is not None:
                    self._sender.send()
        except BaseException:
            super()._leave(None)
            raise
        super()._leave(say)

    def _finish_pass(self, flagged: bool) -> None:
        if self._sender is not None:
            self._sender.before_empty_pushes()
        if self._distribution is not None and self._is_on_course:
            self._distribution.check()
        super()._finish_pass(flagged)  # others may have pushed since our last push
        if self._distribution is not None:
            self._distribution.refresh()

    def _begin_course(self) -> None:
        if self._distribution is not None and self.step and not self._is_on_course:
            self._distribution.refresh()  # what the program did before, an earlier attempt did, too
        self._is_on_course = not self._states.waits

    def assign(self, table: Any, value: Any) -> None:
        """Give a parameter that was distributed, or a dense table, a value: see `Session.assign` of the runtime.

        Sets `parameter` in place. In the outer mode change the parameter itself: that is part of the round.
        """
        if self._replica is not None:
            raise UseError("ps.assign after ps.outer", remedy="change the parameter itself, as part of the round")
        if self._distribution is None or not self._distribution.assign(table, value, super().assign):
            super().assign(table, value)

    def _before_push(self, rates: Mapping[Any, float]) -> None:
        if self._sender is not None:
            self._sender.before_push()
        self._look_for_schedulers(rates)

    def _look_for_schedulers(self, rates: Mapping[Any, float]) -> None:
        """Warn, when a rate changes for the first time, if a scheduler that is not kept may have changed it."""
        if self._lr is None:
            self._lr = rates
        elif self._lr and self._lr != rates:
            self._lr = {}
            name = unsaved_scheduler(self._optimizer, self._things)
            if name is not None:
                self._progress.warn(
                    f"{name} is not kept, and starts anew after a restart; call ps.keep before the loop"
                )
