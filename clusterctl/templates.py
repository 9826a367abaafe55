"""The files that `init` and `demo` start from, wherever the package is installed."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Template:
    """A workspace to begin with: where its files are, how it calls its data, and what it is."""

    source: str
    shards: tuple[str, ...]
    summary: str


TEMPLATES = {
    "ngram": Template("workspace_template", ("train.txt-*", "test.txt-*"), "a language model"),
    "ctr": Template("workspace_ctr", ("train.npy-*", "test.npy-*"), "a click-through model on real flights"),
}
DEFAULT = "ngram"


def data_file(name: str) -> Path:
    """`workspace_template`, `docker` or `conf.py.example`: inside an installed package, beside it in a checkout."""
    packaged = HERE / "_data" / name
    return packaged if packaged.exists() else HERE.parent / name


def template_conf(name: str = DEFAULT) -> str:
    """conf.py.example, with SHARDS as the template of this name calls its data."""
    text = data_file("conf.py.example").read_text()
    return text.replace("# SHARDS = []", f"SHARDS = {json.dumps(TEMPLATES[name].shards)}")


def copy_workspace(target: Path, name: str = DEFAULT) -> None:
    """A fresh copy of the template of this name at `target`, which must not exist."""
    made_by_use = shutil.ignore_patterns("__pycache__", ".*", "data", "output")
    shutil.copytree(data_file(TEMPLATES[name].source), target, ignore=made_by_use)
