"""The files that `init` and `demo` start from, wherever the package is installed."""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).parent


def data_file(name: str) -> Path:
    """`workspace_template`, `docker` or `conf.py.example`: inside an installed package, beside it in a checkout."""
    packaged = HERE / "_data" / name
    return packaged if packaged.exists() else HERE.parent / name


def template_conf() -> str:
    """conf.py.example, with SHARDS as the template workspace calls its data."""
    text = data_file("conf.py.example").read_text()
    return text.replace("# SHARDS = []", 'SHARDS = ["train.txt-*", "test.txt-*"]')


def copy_workspace(target: Path) -> None:
    """A fresh copy of the template workspace at `target`, which must not exist."""
    made_by_use = shutil.ignore_patterns("__pycache__", ".*", "data", "output")
    shutil.copytree(data_file("workspace_template"), target, ignore=made_by_use)
