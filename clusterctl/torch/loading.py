"""What `ps.loader` was given, checked: a DataLoader, and who decides the order of its dataset."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils import data as torch_data

from clusterctl.runtime.errors import UseError
from clusterctl.runtime.trainer.batches import whole_number

_OPTIONS = (
    "collate_fn",
    "drop_last",
    "pin_memory",
    "prefetch_factor",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
)


@dataclass(frozen=True)
class Loading:
    """How batches are made of a dataset. `given` is a DataLoader; its samplers count only if `is_ours` is False."""

    given: Any
    is_ours: bool
    shuffle: bool = False

    @staticmethod
    def checked(
        data: Any, batch_size: int | None, shuffle: bool, num_workers: int, options: Mapping[str, Any]
    ) -> Loading:
        """Return the arguments of `ps.loader`. Raises UseError for those that it does not support."""
        if isinstance(data, torch_data.DataLoader):
            if batch_size is not None or shuffle or num_workers or options:
                raise UseError("batch_size, shuffle and other options are the DataLoader's", remedy="pass them to it")
            for sampler in _samplers(data):
                if isinstance(sampler, torch_data.distributed.DistributedSampler):
                    raise UseError(
                        "the DataLoader has a DistributedSampler, and ps.loader divides the data itself",
                        remedy="use an ordinary sampler, such as RandomSampler",
                    )
            return Loading(data, is_ours=False)
        is_stream = isinstance(data, torch_data.IterableDataset)
        if not is_stream and not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
            raise UseError(f"{type(data).__name__} is not a Dataset, an IterableDataset or a DataLoader")
        if is_stream and shuffle:
            raise UseError("an IterableDataset cannot be shuffled", remedy="shuffle in the dataset")
        strange = [name for name in options if name not in _OPTIONS]
        if strange:
            raise UseError(f"ps.loader has no option {strange[0]!r}", remedy=f"options: {', '.join(_OPTIONS)}")
        size, workers = whole_number("batch_size", batch_size, 1), whole_number("num_workers", num_workers, 0)
        return Loading(torch_data.DataLoader(data, size, num_workers=workers, **options), True, shuffle)

    @property
    def is_stream(self) -> bool:
        return isinstance(self.given.dataset, torch_data.IterableDataset)

    @property
    def is_batched(self) -> bool:
        """True if a batch is made of several samples; False if each item of the dataset is one."""
        return self.given.batch_sampler is not None

    def batches(self, rng: np.random.Generator, seed: int, every: int, offset: int) -> Sequence[Any]:
        """Return the indices of every `every`-th batch of a pass from number `offset`; of a Dataset.

        `rng` gives our order. Samplers draw from the global generators, and from their own, which get `seed`.
        """
        given = self.given
        if not self.is_ours:
            for drawing in (given, *_samplers(given)):
                if getattr(drawing, "generator", None) is not None:
                    drawing.generator.manual_seed(seed)
            sampler = given.batch_sampler if self.is_batched else given.sampler
            return [*itertools.islice(sampler, offset, None, every)]
        size, count = given.batch_size, len(given.dataset)
        order = rng.permutation(count) if self.shuffle else np.arange(count)
        end = count // size * size if given.drop_last else count
        return [order[at : at + size] for at in range(offset * size, end, every * size)]

    def loader(self, dataset: Any, sampler: Any = None) -> Any:
        """Return a DataLoader that takes whole batches from `dataset`, with the workers of the given one.

        Workers find the original dataset, `dataset.original`, in their `get_worker_info()`.
        """
        given = self.given
        return torch_data.DataLoader(
            dataset,
            batch_size=None,
            sampler=sampler,
            collate_fn=_unchanged,
            num_workers=given.num_workers,
            pin_memory=given.pin_memory,
            timeout=given.timeout,
            worker_init_fn=_WorkerStart(given.worker_init_fn),
            multiprocessing_context=given.multiprocessing_context,
            prefetch_factor=given.prefetch_factor,
        )


class _WorkerStart:
    """Begins a worker process. A class, since workers may be spawned."""

    def __init__(self, init: Any) -> None:
        self._init = init

    def __call__(self, worker: int) -> None:
        info: Any = torch_data.get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.original)
        if self._init is not None:
            self._init(worker)


def _samplers(loader: Any) -> list[Any]:
    """Return the samplers of a DataLoader, also the one inside its batch sampler."""
    return [loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)]


def _unchanged(batch: Any) -> Any:
    return batch
