"""The program that merges a model: `python -m clusterctl.runtime.checkpoint.merge OUT_FILE DIRECTORY...`.

Standard input is a lifeline: it ends when that is closed. An error is one line on standard error, and exit code 1.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path

from clusterctl.common.manifest import MERGED_MARK
from clusterctl.runtime.checkpoint.model import merge_pieces
from clusterctl.runtime.errors import ModelError


def main(out_file: str, *directories: str) -> int:
    """Merge the pieces in the directories. Return the exit code."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(OSError):  # if memory is short, rather this process than one that trains
        Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        merge_pieces(directories, out_file, {MERGED_MARK: "1"})
    except (ModelError, OSError) as exc:
        sys.stderr.write(str(exc).replace("\n", " ") + "\n")
        return 1
    return 0


def _end_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
