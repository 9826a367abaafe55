"""The directory of caches on this machine. Imports little, since completion reads a cache at each Tab."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def cache_directory(environ: Mapping[str, str]) -> str:
    """Return this user's cache directory; it may not exist yet."""
    given = environ.get("XDG_CACHE_HOME", "")
    return f"{given if os.path.isabs(given) else os.path.expanduser('~/.cache')}/clusterctl"  # noqa: PTH111, PTH117
