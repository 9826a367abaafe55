"""Which models to bring and to merge: what the nodes list, and what the user has selected."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterctl.collect.receive import read
from clusterctl.common.transfer_messages import ListedModel, ModelsNews
from clusterctl.errors import UsageError
from clusterctl.inventory import Node


@dataclass(frozen=True)
class Model:
    """A complete model, as the lead's node lists it."""

    tag: str
    run: str
    step: int


@dataclass(frozen=True)
class ModelSelection:
    """A selection: a `run` (None: the job never ran), and the model `tag` (None: the newest) or `every` model."""

    run: str | None
    tag: str | None = None
    every: bool = False


@dataclass(frozen=True)
class ModelList:
    """The answer of a node: the complete `models` that it knows, and the files that each `needs`; the files of models
    that it `has`, and the `steps` of those, complete or not, by tag; and the models that were `merged` there.
    """

    models: Sequence[Model]
    needs: Mapping[str, Sequence[str]]
    has: Mapping[str, Sequence[str]]
    steps: Mapping[str, int]
    merged: Sequence[Model] = ()


def listed_by(node: Node, message: Any) -> ModelList:
    """Return what a node lists. Raises NodeError if it is malformed."""
    news: ModelsNews = read(node, ModelsNews, message, "a malformed list of models")
    held = news.get("held", [])
    return ModelList(
        models=list(map(_model, news["models"])),
        needs={row["tag"]: row.get("files", []) for row in news["models"]},
        has={row["tag"]: row["files"] for row in held},
        steps={row["tag"]: row["step"] for row in held},
        merged=list(map(_model, news.get("merged", []))),
    )


def _model(row: ListedModel) -> Model:
    return Model(row["tag"], row["run"], row["step"])


class Choice:
    """The models to bring, chosen from the list of the lead's node, or if that fails, from those of all others.

    `tag` is the one to merge if it can be completed, `bring` the scheduled ones to bring (None: all). `models` is None
    if no node listed any.
    """

    def __init__(self, selection: ModelSelection, job: str, members: Sequence[Node]) -> None:
        self._selection = selection
        self._job = job
        self._lead = members[0].id
        self._missing = {node.id for node in members}
        self._lists: dict[int, ModelList] = {}
        self._changed = threading.Condition()
        self._error: UsageError | None = None
        self.models: tuple[Model, ...] | None = None
        self.tag = selection.tag
        self.bring = None if selection.every or selection.tag is None else [selection.tag]

    def offer(self, node: Node, listed: ModelList | None) -> None:
        """Take the list of a node; None, or nothing before, if the node failed."""
        with self._changed:
            is_new = node.id in self._missing
            self._missing.discard(node.id)
            if is_new and listed is not None:
                self._lists[node.id] = listed
                if node.id == self._lead:
                    self._make(listed.models)
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait for the choice. Raises UsageError if there is nothing to choose."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_made() or not self._missing)
            if not self._is_made():
                self._make(self._agreed())
            if self._error is not None:
                raise self._error

    def _is_made(self) -> bool:
        return self.models is not None or self._error is not None

    def _agreed(self) -> list[Model]:
        """Return the models that most nodes list; without any such model, all that are listed."""
        counts = Counter(model for listed in self._lists.values() for model in set(listed.models))
        most = [model for model, count in counts.items() if 2 * count > len(self._lists)]
        return most or list(counts)

    def _make(self, models: Sequence[Model]) -> None:
        in_order = [model.tag for model in sorted(models, key=_age)]
        if self.tag is not None and self.tag not in in_order:
            hint = f"it has: {', '.join(in_order) or 'none'}"
            self._error = UsageError(f"the run of {self._job} has no complete model {self.tag}", hint=hint)
            return
        if self.tag is None and in_order:
            self.tag = in_order[-1]
            self.bring = None if self._selection.every else [self.tag]
        self.models = tuple(models)

    def candidates(self) -> Iterator[Model]:
        """Yield the models that may be merged, newest first; only one if it was selected."""
        for model in sorted(self.models or (), key=_age, reverse=True):
            if self._selection.tag in (None, model.tag):
                yield model

    def lacks(self, model: Model, nodes: Sequence[Node]) -> list[str]:
        """Return the files of a model that none of the nodes has, by name."""
        there = {name for node in nodes for name in self._of(node).has.get(model.tag, ())}
        known = [one.needs[model.tag] for one in self._lists.values() if model in one.models]
        return sorted(set(known[0]) - there) if known else []

    def was_merged(self, model: Model) -> bool:
        """Return True if the lead's node lists the model as merged there."""
        return self._lead in self._lists and model in self._lists[self._lead].merged

    def unknown(self, nodes: Sequence[Node]) -> list[str]:
        """Return the tags of models that are newer than all listed ones: the nodes have pieces, but no manifest.

        Empty if a model was selected.
        """
        if self._selection.tag is not None:
            return []
        steps = {tag: step for node in nodes for tag, step in self._of(node).steps.items()}
        tags = {model.tag for model in self.models or ()}
        newest = max((model.step for model in self.models or ()), default=-1)
        return sorted(tag for tag, step in steps.items() if step > newest and tag not in tags)

    def _of(self, node: Node) -> ModelList:
        return self._lists.get(node.id, ModelList((), {}, {}, {}))


def _age(model: Model) -> tuple[int, str]:
    return model.step, model.tag
