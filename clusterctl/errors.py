"""The error tree: each error has a message, the node it happened on, a hint, and the exit code of the process.

| class              | kind          | exit code | when                                                     |
|--------------------|---------------|-----------|----------------------------------------------------------|
| `JobFailedError`   | `job_failed`  | 1         | the job itself failed                                    |
| `UsageError`       | `usage`       | 2         | the command line is wrong                                |
| `ConfigError`      | `config`      | 2         | conf.py or the workspace is wrong                        |
| `NodeError`        | `node`        | 3         | a node failed an operation                               |
| `UnreachableError` | `unreachable` | 3         | a node could not be reached                              |
| `RefusedError`     | `refused`     | 4         | refused for safety                                       |
| `InterruptedRun`   | `interrupted` | 130       | the user interrupted, and everything was stopped cleanly |
| `WaitTimeoutError` | `error`       | 1         | a wait of the Python API took too long                   |
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar, TypedDict

from clusterctl.common.schema import NotRequired


class ErrorDocument(TypedDict):
    """An error in a JSON document."""

    kind: str  # as in docs/commands.md
    message: str
    node: str | None  # its label, such as `node3`
    hint: str | None
    details: NotRequired[dict[str, Any]]  # such as `reason`, or `nodes`: the error of each node


class ClusterctlError(Exception):
    """Base class of every error that is meant for the user.

    `message` describes the attempt and its outcome, `node` is the label of the node, such as `node3`, `hint` is the
    next step, and `details` holds data for `--json` only.
    """

    kind: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        message: str,
        *,
        node: str | None = None,
        hint: str | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.node = node
        self.hint = hint
        self.details = details or {}
        if hint and sys.version_info >= (3, 11):
            self.add_note(f"hint: {hint}")  # for a traceback, which a program of the Python API may end with

    def to_json(self) -> ErrorDocument:
        """Return the error in the form of `--json`, without its details."""
        return {"kind": self.kind, "message": self.message, "node": self.node, "hint": self.hint}

    def __str__(self) -> str:
        return f"{self.node}: {self.message}" if self.node else self.message


class JobFailedError(ClusterctlError):
    """The job failed: its processes did, or it was lost or stopped by others."""

    kind = "job_failed"
    exit_code = 1


class UsageError(ClusterctlError):
    """A call with wrong or contradictory arguments."""

    kind = "usage"
    exit_code = 2


class ConfigError(ClusterctlError):
    """A conf.py, a setting or a file of the workspace that is wrong."""

    kind = "config"
    exit_code = 2


class NodeError(ClusterctlError):
    """An operation that failed on some nodes."""

    kind = "node"
    exit_code = 3


class UnreachableError(NodeError):
    """A node that does not answer."""

    kind = "unreachable"


class RefusedError(ClusterctlError):
    """An operation that was refused for safety, such as a second run of a job."""

    kind = "refused"
    exit_code = 4


class InterruptedRun(ClusterctlError):  # noqa: N818 - an interruption by the user is not an error
    kind = "interrupted"
    exit_code = 130


class WaitTimeoutError(ClusterctlError, TimeoutError):
    """No command raises it, so it has no kind of its own."""
