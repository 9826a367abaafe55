"""The one error tree: what went wrong, on which node, what to do about it, and the exit code of the process.

| class              | kind          | exit code | when                                                     |
|--------------------|---------------|-----------|----------------------------------------------------------|
| `JobFailedError`   | `job_failed`  | 1         | the job itself failed                                    |
| `UsageError`       | `usage`       | 2         | the command line is wrong                                |
| `ConfigError`      | `config`      | 2         | conf.py or the workspace is wrong                        |
| `NodeError`        | `node`        | 3         | a node failed an operation                               |
| `UnreachableError` | `unreachable` | 3         | a node could not be reached                              |
| `RefusedError`     | `refused`     | 4         | refused for safety                                       |
| `InterruptedRun`   | `interrupted` | 130       | the user interrupted, and everything was stopped cleanly |
"""

from __future__ import annotations

from typing import Any, ClassVar


class ClusterctlError(Exception):
    """Base of every error that a user is meant to read.

    `message` says what was attempted and what happened, `node` names the node it happened on (a label such
    as `node3`), `hint` says what to do next, and `details` carries what only `--json` shows.
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

    def to_json(self) -> dict[str, Any]:
        """The error as `--json` shows it, without its details."""
        return {"kind": self.kind, "message": self.message, "node": self.node, "hint": self.hint}

    def __str__(self) -> str:
        return f"{self.node}: {self.message}" if self.node else self.message


class JobFailedError(ClusterctlError):
    kind = "job_failed"
    exit_code = 1


class UsageError(ClusterctlError):
    kind = "usage"
    exit_code = 2


class ConfigError(ClusterctlError):
    kind = "config"
    exit_code = 2


class NodeError(ClusterctlError):
    kind = "node"
    exit_code = 3


class UnreachableError(NodeError):
    kind = "unreachable"


class RefusedError(ClusterctlError):
    kind = "refused"
    exit_code = 4


class InterruptedRun(ClusterctlError):  # noqa: N818 - an interruption asked for is not an error
    kind = "interrupted"
    exit_code = 130
