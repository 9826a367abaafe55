"""Mistakes in a conf.py, each with its file and line, all reported together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl.errors import ConfigError


@dataclass(frozen=True)
class ConfMistake:
    """One mistake. `message` is a full sentence that starts with the key, if there is one."""

    file: str
    line: int | None
    key: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.file}: {self.message}" if self.line is None else f"{self.file}:{self.line}: {self.message}"


def config_error(findings: Sequence[ConfMistake]) -> ConfigError:
    """Return the error for one or more findings: one line each, the first hint, and all details for `--json`."""
    details = [{"file": f.file, "line": f.line, "key": f.key, "message": f.message} for f in findings]
    return ConfigError(
        "\n".join(str(finding) for finding in findings),
        hint=next((finding.hint for finding in findings if finding.hint), None),
        details={"findings": details},
    )
