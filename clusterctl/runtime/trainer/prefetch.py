"""Request the rows of batches ahead of their turn."""

from __future__ import annotations

from clusterctl.runtime.trainer.batches import StepContext
from clusterctl.runtime.trainer.handles import Embedding, IdsOf
from clusterctl.runtime.trainer.parameters import Parameters


class Prefetcher:
    """Requests the rows of each batch once, for the embeddings that `ids_of` names."""

    def __init__(self, parameters: Parameters, mode: str) -> None:
        self.ids_of: IdsOf = {}
        self._parameters = parameters
        self._is_sync = mode == "sync"
        self._requested: dict[Embedding, tuple[int, int]] = {}

    def request(self, context: StepContext) -> None:
        """Request the rows of the batches ahead that were not requested yet."""
        batches = context.ahead[:1] if self._is_sync else context.ahead
        for handle, ids_of in self.ids_of.items():
            for number, batch in enumerate(batches, context.batch + 1):
                if self._requested.get(handle, (-1, -1)) < (context.pass_, number):
                    self._requested[handle] = (context.pass_, number)
                    self._parameters.prefetch(handle, handle.id_batch(ids_of(batch)), len(batches))
