"""The documents of commands that reach no node of conf.py: they make files, fake clusters or jobs of a scheduler."""

from __future__ import annotations

from typing import Any, TypedDict

from clusterctl.common.schema import Count, NotRequired


class InitDocument(TypedDict):
    """The files that were written."""

    conf: str
    workspace: str


class FakeUpDocument(TypedDict):
    dir: str
    backend: str
    conf: str
    hosts: list[str]  # entries for HOSTS


class FakeNodeDocument(TypedDict):
    node: Count
    port: Count
    state: str  # up, killed, paused, cut, or down
    answers: bool
    processes: Count


class FakeStatusDocument(TypedDict):
    dir: str
    backend: str
    pid: Count | None  # of the process that runs the cluster; null if each node has its own
    alive: bool
    nodes: list[FakeNodeDocument]


class FakeFaultDocument(TypedDict):
    dir: str
    node: Count
    done: str  # the name of the command
    host: NotRequired[str]  # of `heal`: the entry of the node for HOSTS


class FakeDownDocument(TypedDict):
    dir: str
    killed: Count  # the number of processes on its nodes


class ShardDocument(TypedDict):
    path: str
    records: Count
    bytes: Count


class SplitDocument(TypedDict):
    records: Count
    shards: list[ShardDocument]
    warnings: list[str]  # such as a first record that looks like a header


class DemoPass(TypedDict):
    """The perplexity of a pass on held-out text."""

    held_out: float
    unigram: float


class DemoDocument(TypedDict):
    nodes: Count
    backend: str
    perplexity: float  # on held-out text, after the last pass
    unigram_perplexity: float
    passes: list[DemoPass]
    seconds: float
    model: str
    curve: str


class CompletionDocument(TypedDict):
    shell: str
    script: str


class SubmissionDocument(TypedDict):
    """A job for Slurm; with `--plan` it has only `to` and `script`."""

    to: str
    id: NotRequired[str]
    run: NotRequired[str]  # the name of the run
    output: NotRequired[str]  # the file for what the script prints
    root_dir: NotRequired[str]
    script: str


class ManifestDocument(TypedDict):
    """The objects that `submit --to kubernetes --plan` would make."""

    to: str
    manifest: list[dict[str, Any]]


class DeletedDocument(TypedDict):
    deleted: list[str]  # the objects, such as `service/train-0a1b2c3d`


class MetricsDocument(TypedDict):
    """The only line of `metrics`, printed at the start."""

    url: str


class HelpDocument(TypedDict):
    help: str


class DisconnectDocument(TypedDict):
    helpers: list[str]
