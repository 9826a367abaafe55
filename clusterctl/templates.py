"""The template files of `init` and `demo`, in an installed package and in a checkout."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Template:
    """A starter workspace: its source directory, the patterns of its data files, and a one-line description.

    `prepare`: the command that makes its data for four trainers.
    """

    source: str
    shards: tuple[str, ...]
    summary: str
    prepare: str = "prepare_data.py --shards 4"


TEMPLATES = {
    "ngram": Template("workspace_template", ("train.txt-*", "test.txt-*"), "a language model"),
    "ctr": Template("workspace_ctr", ("train.npy-*", "test.npy-*"), "a click-through model on real flights"),
    "torch": Template("workspace_torch", (), "a transformer in torch", "prepare_data.py"),
}
DEFAULT = "ngram"


def data_file(name: str) -> Path:
    """Return the path of `workspace_template`, `docker` or `conf.py.example`.

    It is inside an installed package, and beside the package in a checkout.
    """
    packaged = HERE / "_data" / name
    return packaged if packaged.exists() else HERE.parent / name


def template_conf(name: str = DEFAULT) -> str:
    """Return the text of conf.py.example, with SHARDS set if the template has data files for single trainers."""
    text = data_file("conf.py.example").read_text()
    shards = TEMPLATES[name].shards
    return text.replace("# SHARDS = []", f"SHARDS = {json.dumps(shards)}") if shards else text


def copy_workspace(target: Path, name: str = DEFAULT) -> None:
    """Copy the template to `target`, which must not exist, without files that its use creates."""
    made_by_use = shutil.ignore_patterns("__pycache__", ".*", "data", "output")
    shutil.copytree(data_file(TEMPLATES[name].source), target, ignore=made_by_use)
