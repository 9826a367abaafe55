"""Which models are merged, asked for and called skipped, from what the nodes list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterctl.collect.choice import Choice, ModelSelection, listed_by
from clusterctl.collect.collect import _complete
from clusterctl.config import from_values
from clusterctl.errors import NodeError
from clusterctl.inventory import build

NODES = build(from_values({"HOSTS": ["a", "b"]})).nodes
LEAD, OTHER = NODES
MODELS = [
    {"tag": f"pass-{step:05d}", "run": "0001", "step": step, "files": ["pserver-00001.safetensors"]}
    for step in range(9)
]


def made(selection: ModelSelection, *, lead: dict[str, Any] | None, other: dict[str, Any] | None = None) -> Choice:
    choice = Choice(selection, "job", NODES)
    for node, message in ((LEAD, lead), (OTHER, other)):
        choice.offer(node, None if message is None else listed_by(node, message))
    choice.wait()
    return choice


class Counted:
    """A cluster whose nodes do not answer."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def call(self, node: Any, request: Any) -> Any:
        self.calls.append(request["copies"]["tag"])
        raise NodeError("it does not answer")


@pytest.mark.parametrize("merged", [[], MODELS[2:4]])
def test_without_a_node_the_lead_is_asked_only_for_models_that_were_merged_there(
    tmp_path: Path, merged: list[dict[str, Any]]
) -> None:
    choice = made(ModelSelection("0001"), lead={"models": MODELS, "merged": merged})
    cluster: Any = Counted()
    found, skipped = _complete(cluster, choice, [LEAD], LEAD, tmp_path, {}, [], lambda *_: None)
    assert (found, len(skipped)) == (None, len(MODELS))
    assert cluster.calls == ["pass-00008", *(row["tag"] for row in reversed(merged))], "the first for its copies"


@pytest.mark.parametrize(("tag", "unknown"), [("pass-00003", []), (None, ["pass-00009"])])
def test_models_newer_than_a_selected_one_are_not_skipped(tag: str | None, unknown: list[str]) -> None:
    held = [{"tag": "pass-00009", "step": 9, "files": []}]
    choice = made(ModelSelection("0001", tag), lead=None, other={"models": MODELS, "held": held})
    assert choice.unknown([OTHER]) == unknown


@pytest.mark.parametrize("merged", [None, [{"tag": "../x", "run": "0001", "step": 1}], [{"tag": "x", "run": "0001"}]])
def test_a_malformed_list_of_merged_models_is_refused(merged: object) -> None:
    with pytest.raises(NodeError, match="a malformed list of models"):
        listed_by(LEAD, {"models": [], "merged": merged})
