"""The cache of what commands have seen of a conf.py: one file for each, which anything may have damaged.

What is read is checked and bounded, since names come from nodes and from conf.py: text that a shell or a terminal could
take for anything but a name is dropped.
"""

from __future__ import annotations

import binascii
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterctl.api.operations.caches import cache_directory
from clusterctl.common.safe_json import loads

VERSION = 1
MOST_BYTES = 1_000_000
MOST_JOBS = 200
MOST_OF_A_JOB = 100  # runs and tags
MOST_NODES = 2000
MOST_TAGS = 20  # of a node
LONGEST = 200


class Known:
    """`nodes` have `label`, `host`, `name` and `tags`; `jobs`, by id, have `state`, `runs` and `tags`.

    The runs of a job are names by number, its tags are those of its models.
    """

    def __init__(self, nodes: list[dict[str, Any]], jobs: dict[str, dict[str, Any]]) -> None:
        self.nodes = nodes
        self.jobs = jobs

    @classmethod
    def of(cls, options: Mapping[str, str], environ: Mapping[str, str]) -> Known:
        """Return what is known of the conf.py that the options of a command line mean."""
        conf = options.get("--conf") or environ.get("CLUSTERCTL_CONF") or "conf.py"
        if "--dir" in options and not Path(conf).exists():
            conf = f"{options['--dir']}/conf.py"
        return read(cache_directory(environ), os.path.expanduser(conf))  # noqa: PTH111 - `~NAME` may be of nobody


def path_of(cache_dir: str, conf: str) -> str:
    """Return the path of the file about a conf.py, given its real path."""
    return f"{cache_dir}/completion/{binascii.crc32(os.fsencode(conf)):08x}.json"


def read(cache_dir: str, conf: str) -> Known:
    """Return what is known of a conf.py: nothing if there is no file, or it is damaged or about another one."""
    conf = os.path.realpath(conf)
    try:
        with Path(path_of(cache_dir, conf)).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        value = fields_of(loads(data)) if len(data) <= MOST_BYTES else {}
    except (OSError, ValueError, RecursionError):
        value = {}
    if value.get("v") != VERSION or value.get("conf") != conf:
        value = {}
    return checked(value.get("nodes"), value.get("jobs"))


def checked(nodes: object, jobs: object) -> Known:
    """Return what is well-formed, within the limits. Of the jobs, and of what belongs to each, the last ones stay."""
    return Known(
        [one for node in _items(nodes)[:MOST_NODES] if (one := _node(fields_of(node)))["label"]],
        {job: _job(fields_of(about)) for job, about in list(fields_of(jobs).items())[-MOST_JOBS:] if is_name(job)},
    )


def fields_of(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def is_name(text: object) -> bool:
    """Return True for text that can be a candidate: short, visible, and not an option."""
    return isinstance(text, str) and 0 < len(text) <= LONGEST and text.isprintable() and not text.startswith("-")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _name(value: object) -> str:
    return value if isinstance(value, str) and is_name(value) else ""


def _node(value: Mapping[str, Any]) -> dict[str, Any]:
    names = {key: _name(value.get(key)) for key in ("label", "host", "name")}
    return {**names, "tags": list(filter(is_name, _items(value.get("tags"))[:MOST_TAGS]))}


def _job(value: Mapping[str, Any]) -> dict[str, Any]:
    runs = {number: name for number, name in fields_of(value.get("runs")).items() if _is_number(number)}
    return {
        "state": _name(value.get("state")),
        "runs": {number: _name(runs[number]) for number in sorted(runs, key=int)[-MOST_OF_A_JOB:]},
        "tags": list(filter(is_name, _items(value.get("tags"))[-MOST_OF_A_JOB:])),
    }
