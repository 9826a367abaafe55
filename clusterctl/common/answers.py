"""Answers that have one declaration for the program that builds them and the one that reads them.

`cluster/answers.py` declares the other answers of agents. Nodes may be hostile: the types have bounds.
"""

from __future__ import annotations

from typing import TypedDict

from clusterctl.common.requests import JobId, Name, RunName
from clusterctl.common.schema import Count, Moment


class RanJob(TypedDict):
    """A job that ran on a node, the time when its newest run began there, and if that run is live."""

    job: JobId
    t: Moment
    live: bool


class NamedRun(TypedDict):
    """A run of some name, and when it started by the clock of the node."""

    job: JobId
    run: RunName
    t: Moment | None


class NamedAnswer(TypedDict):
    """The answer to `find_named`: the job whose id, prefix or directory was asked for, else the runs of this name."""

    job: JobId | None
    runs: list[NamedRun]


class SaveAnswer(TypedDict):
    """The checkpoint that the lead has made on request."""

    job: JobId
    run: RunName
    tag: Name
    step: Count


class SaveOutcome(TypedDict, total=False):
    """The lead's answer to an agent that wants a checkpoint.

    Either `tag` and `step` of a complete one, or `why` there is none; `again`: asking again may help.
    """

    tag: str
    step: int
    why: str
    again: bool
