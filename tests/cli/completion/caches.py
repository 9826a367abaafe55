"""Caches with names of all kinds, and questions to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clusterctl.cli.completion.candidates import complete
from clusterctl.cli.completion.known import VERSION, path_of

JOB, OLDER = "JOB20261125-153906", "JOB20261124-120000"
#: Names that conf.py or a node may have, and that mean something to a shell.
HOSTILE = (
    *("two words", "it's", 'say "hi"', "$(touch pwned)", "`touch pwned`", "semi;touch pwned", "a$HOME", "b\\slash"),
    *("star*", "~root", "café", "x=1", "tag@home", "co:lon", "&touch pwned", "|touch pwned", "<pwned", ">pwned"),
)
NO_NAMES = ("", "new\nline", "tab\tab", "bell\x07", "\x1b[2J", "\u202eright", "-rf", "x" * 201, 3, None, ["a"])


def node(number: int, name: str = "", *tags: object) -> dict[str, Any]:
    return {"label": f"node{number}", "host": f"10.0.0.{number}", "name": name, "tags": list(tags)}


def job(state: str = "", tags: tuple[object, ...] = (), **names: object) -> dict[str, Any]:
    return {"state": state, "runs": {number.strip("_"): name for number, name in names.items()}, "tags": list(tags)}


class Cache:
    """The cache of a user in `home`, and what it knows of `home`/conf.py."""

    def __init__(self, home: Path) -> None:
        self.conf = home / "conf.py"
        self.environ = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "CLUSTERCTL_CONF": str(self.conf)}
        self.path = Path(path_of(str(home / "cache/clusterctl"), str(self.conf.resolve())))
        self.path.parent.mkdir(parents=True)

    def write(self, nodes: object, jobs: object) -> None:
        about = {"v": VERSION, "conf": str(self.conf.resolve()), "nodes": nodes, "jobs": jobs}
        self.path.write_text(json.dumps(about))

    def offered(self, *words: str) -> list[str]:
        """Return the candidates for the last word of a command line."""
        return [value for value, _ in complete(words[:-1], words[-1], self.environ)[1]]

    def files(self, *words: str) -> str:
        """Return which files may be meant by the last word of a command line."""
        return complete(words[:-1], words[-1], self.environ)[0]
