"""What is wrong with a conf.py: findings, each with its file and line, reported all together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl.errors import ConfigError


@dataclass(frozen=True)
class Finding:
    """One mistake. `message` is a whole sentence that begins with the key, if there is one."""

    file: str
    line: int | None
    key: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.file}: {self.message}" if self.line is None else f"{self.file}:{self.line}: {self.message}"


def config_error(findings: Sequence[Finding]) -> ConfigError:
    """The error for one finding or more: a line for each, the first hint, and everything for `--json`."""
    details = [{"file": f.file, "line": f.line, "key": f.key, "message": f.message} for f in findings]
    return ConfigError(
        "\n".join(str(finding) for finding in findings),
        hint=next((finding.hint for finding in findings if finding.hint), None),
        details={"findings": details},
    )
