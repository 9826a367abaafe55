"""Completes a model with copies of pieces, if a node is lost or a file of it is damaged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from clusterctl.cluster import NONSENSE, Cluster
from clusterctl.collect.choice import Model
from clusterctl.collect.receive import EarlierFiles, Receiver, Report
from clusterctl.common.manifest import MERGED_NAME, read_manifest
from clusterctl.common.requests import CollectRequest, CopiesWanted
from clusterctl.documents.jobs import CollectedFile
from clusterctl.errors import ClusterctlError
from clusterctl.inventory import Node


class Pieces:
    """The pieces of the model `tag` that were brought into `target`, and those that its manifest names."""

    def __init__(self, target: Path, tag: str, files: Iterable[CollectedFile]) -> None:
        self._target = target
        self.tag = tag
        self._have: dict[str, list[CollectedFile]] = {}
        self._named: dict[str, Any] | None = None
        self.damaged: list[str] = []
        self._add(files)

    def _add(self, files: Iterable[CollectedFile]) -> None:
        end = f"/output/{self.tag}/"
        for file in files:
            home, is_of_tag, name = file.path.partition(end)
            if not is_of_tag or "/" in home or "/" in name:
                continue
            with contextlib.suppress(*NONSENSE):
                manifest = read_manifest(self._target / home / "output" / self.tag)
                if self._named is None and manifest is not None:
                    self._named = {entry["file"]: entry["sha256"] for entry in manifest["files"]}
            self._have.setdefault(name, []).append(file)
        self._drop_damaged()

    def _drop_damaged(self) -> None:
        """Remove files in whose place there is a sound one."""
        for name, digest in (self._named or {}).items():
            files = self._have.get(name, [])
            sound = [file for file in files if file.sha256 == digest]
            for file in files if sound else ():
                if file.sha256 != digest:
                    self.damaged.append(file.path)
                    (self._target / file.path).unlink(missing_ok=True)
            if sound:
                self._have[name] = sound

    @property
    def directories(self) -> list[Path]:
        """Where they are."""
        return sorted({(self._target / file.path).parent for files in self._have.values() for file in files})

    @property
    def are_whole(self) -> bool:
        """True if the model has a manifest, and all of its pieces are here."""
        return self._named is not None and self._named.keys() <= self._sound()

    @property
    def missing(self) -> list[str]:
        """The files of the model, as its manifest names them, that are not here."""
        return sorted((self._named or {}).keys() - self._sound())

    def _sound(self) -> set[str]:
        named = self._named or {}
        return {name for name, files in self._have.items() if files[0].sha256 == named.get(name)}

    def complete(
        self, cluster: Cluster, nodes: Sequence[Node], request: CollectRequest, report: Report, *, originals: bool
    ) -> list[CollectedFile]:
        """Ask nodes for copies of what is missing, until nothing is. Return the files that came.

        With `originals` also ask for the pieces that the nodes have written.
        """
        came: list[CollectedFile] = []
        for node in nodes:
            if not self.are_whole:
                copies: CopiesWanted = {"tag": self.tag, "have": sorted(self._sound()), "originals": originals}
                new = _ask(cluster, node, {**request, "copies": copies}, self._target, report)
                self._add(new)
                came += new
        return [file for file in came if file.path not in self.damaged]


def download_merged(
    cluster: Cluster, lead: Node, request: CollectRequest, model: Model, target: Path, report: Report
) -> Path | None:
    """Bring the model as it was merged on the lead's node, if it was."""
    copies: CopiesWanted = {"tag": model.tag, "have": [], "merged": {"run": model.run, "step": model.step}}
    files = _ask(cluster, lead, {**request, "copies": copies}, target, report)
    paths = [target / file.path for file in files if file.path.endswith(f"/{MERGED_NAME}")]
    if not paths:
        return None
    merged = target / "model" / MERGED_NAME
    merged.parent.mkdir(exist_ok=True)
    return paths[0].replace(merged)


def _ask(cluster: Cluster, node: Node, request: CollectRequest, target: Path, report: Report) -> list[CollectedFile]:
    """Return the files that a node sent; none if it failed, which its part of the collection has told already."""
    earlier = EarlierFiles(target, node, whole=False)
    copies: CopiesWanted = {**request["copies"], "parts": earlier.known()}
    with contextlib.suppress(ClusterctlError), cluster.call(node, {**request, "copies": copies}) as call:
        return Receiver(call, target, report, earlier).receive().files
    return []
