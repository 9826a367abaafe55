"""The scripts that the commands of conf.py run."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence

from clusterctl.config.settings import Settings

INTERPRETER = re.compile(r"python[\d.]*|bash|sh|perl|node|Rscript|julia")


def scripts(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the setting and the path of each script that processes certainly run in the directory they begin in."""
    for name, argv in (("TRAINER_COMMAND", settings.trainer_command), ("PSERVER_COMMAND", settings.pserver_command)):
        script = _script(argv or ())
        if script is not None:
            yield name, posixpath.normpath(script)


def _script(argv: Sequence[str]) -> str | None:
    """Return the script that a command runs in its directory; None if it runs none, or that is hard to say."""
    interpreted = len(argv) > 1 and INTERPRETER.fullmatch(argv[0].rpartition("/")[2]) and not argv[1].startswith("-")
    script = argv[1] if interpreted else argv[0] if argv and "/" in argv[0] else ""
    return script if script and not script.startswith(("/", "~", "../")) else None
