"""The error of a command whose conf.py belongs to a fake cluster that is down."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from clusterctl.errors import ClusterctlError, ConfigError, NodeError, RefusedError, UnreachableError
from clusterctl.fake import find_down


def explained(error: ClusterctlError, conf: Path | None) -> ClusterctlError:
    """Return the error to report instead of `error`, which nodes of `conf` gave: that their fake cluster is down.

    Another server may have got the port of a node, whose host key then seems to have changed. Returns `error` if they
    are no fake nodes, or their cluster is up.
    """
    refused_by_nodes = isinstance(error, RefusedError) and (error.node is not None or "nodes" in error.details)
    if conf is None or not (refused_by_nodes or isinstance(error, NodeError | ConfigError)):
        return error

    down = find_down(conf)
    if down is None:
        return error
    directory = os.path.relpath(down.directory)
    where = directory if not directory.startswith("..") else str(down.directory)
    size = f" -n {down.nodes}" if down.nodes else ""
    backend = f" --backend {down.backend}" if down.backend else ""
    move = "" if down.conf_is_right else f"{conf} was edited: move it away; then "
    hint = f"{move}clusterctl fake up{size}{backend} --dir {shlex.quote(where)} starts a new one, without jobs"
    return UnreachableError(f"the fake cluster in {where} is down", hint=hint, details=error.details)
