"""The directory of caches on this machine."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping


def cache_directory(environ: Mapping[str, str]) -> str:
    """Return this user's cache directory; it may not exist yet."""
    given = environ.get("XDG_CACHE_HOME", "")
    return f"{given if os.path.isabs(given) else os.path.expanduser('~/.cache')}/clusterctl"  # noqa: PTH111, PTH117


def private_cache(environ: Mapping[str, str]) -> str:
    """Return this user's cache directory, made or changed so that only this account can use it, whatever the umask.

    Where it cannot be made there is no cache. Nor where it belongs to another account, as in a container that maps
    accounts; the path is then below a file. Only the user of a `sudo` that keeps HOME shares it with root.
    """
    path = cache_directory(environ)
    with contextlib.suppress(OSError):  # it exists, or this disk is read-only
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        os.mkdir(path, 0o700)  # noqa: PTH102
    with contextlib.suppress(OSError):
        found = os.stat(path)  # noqa: PTH116
        own = {os.geteuid(), int(environ["SUDO_UID"])} if _is_sudo(environ) else {os.geteuid()}
        if found.st_uid not in own:
            return f"{os.devnull}/clusterctl"
        if stat.S_IMODE(found.st_mode) != 0o700:
            os.chmod(path, 0o700)  # noqa: PTH101
    return path


def _is_sudo(environ: Mapping[str, str]) -> bool:
    return os.geteuid() == 0 and environ.get("SUDO_UID", "").isdecimal()
