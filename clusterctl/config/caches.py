"""The directory of caches on this machine."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from clusterctl.common.paths import expand


def cache_directory(environ: Mapping[str, str]) -> str:
    """Return this user's cache directory; it may not exist yet."""
    given = environ.get("XDG_CACHE_HOME", "")
    return f"{given if Path(given).is_absolute() else expand('~/.cache')}/clusterctl"


def private_cache(environ: Mapping[str, str]) -> str:
    """Return this user's cache directory, made or changed so that only this account can use it, whatever the umask.

    Where it cannot be made there is no cache. Nor where it belongs to another account, as in a container that maps
    accounts; the path is then below a file. Only the user of a `sudo` that keeps HOME shares it with root.
    """
    path = Path(cache_directory(environ))
    with contextlib.suppress(OSError):  # it exists, or this disk is read-only
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        path.mkdir(0o700)
    with contextlib.suppress(OSError):
        found = path.stat()
        own = {os.geteuid(), int(environ["SUDO_UID"])} if _is_sudo(environ) else {os.geteuid()}
        if not {found.st_uid, path.lstat().st_uid} <= own:  # it may be a link
            return f"{os.devnull}/clusterctl"
        if stat.S_IMODE(found.st_mode) != 0o700:
            path.chmod(0o700)
    return str(path)


def _is_sudo(environ: Mapping[str, str]) -> bool:
    return os.geteuid() == 0 and environ.get("SUDO_UID", "").isdecimal()
