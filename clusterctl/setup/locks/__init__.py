"""Lock files: `uv.lock` and `pylock.toml`, and the files that they select for a kind of node.

May import `common`, `errors`, and `platforms` of this package. Start reading at `lock_file.py`.
"""

from clusterctl.setup.locks.lock_file import LockFile, LockSelection, read_lock

__all__ = ["LockFile", "LockSelection", "read_lock"]
