"""The directory of caches on this machine. Imports little, since completion reads a cache at each Tab."""

from __future__ import annotations

import contextlib
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def cache_directory(environ: Mapping[str, str]) -> str:
    """Return this user's cache directory; it may not exist yet."""
    given = environ.get("XDG_CACHE_HOME", "")
    return f"{given if os.path.isabs(given) else os.path.expanduser('~/.cache')}/clusterctl"  # noqa: PTH111, PTH117


def private_cache(environ: Mapping[str, str]) -> str:
    """Return this user's cache directory, made or changed so that only this account can use it, whatever the umask.

    Raises ConfigError if it belongs to another account. Where it cannot be made, there is no cache.
    """
    path = cache_directory(environ)
    with contextlib.suppress(OSError):  # it exists, or this disk is read-only
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        os.mkdir(path, 0o700)  # noqa: PTH102
    with contextlib.suppress(OSError):
        found = os.stat(path)  # noqa: PTH116
        if found.st_uid != os.geteuid():
            from clusterctl.errors import ConfigError

            hint = "remove it, or set XDG_CACHE_HOME to a directory of your own"
            raise ConfigError(f"the cache {path} belongs to another account (uid {found.st_uid})", hint=hint)
        if stat.S_IMODE(found.st_mode) != 0o700:
            os.chmod(path, 0o700)  # noqa: PTH101
    return path
