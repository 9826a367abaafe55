"""`manifest.json`, which marks a saved directory as complete. Standard library only, so that agents can import it.

Schema, version 1::

    {"v": 1, "job": "JOB...", "run": "0001", "tag": "pass-00000", "pass": 0, "step": 35, "mode": "sync", "seed": 0,
     "pservers": 4,
     "tables": {NAME: {"kind": "dense" | "sparse", "shape": [...], "rows": null | n, "held": elements or rows saved}},
     "files": [{"file": "pserver-00000.safetensors", "pserver": 0, "bytes": n, "sha256": hex, "node": 0}, ...]}

The manifest of a checkpoint also has `"checkpoint": true`, `"trainers": n`, the `"lanes": [dense, sparse]` of a pserver
and, outside sync mode, the trainers' `"steps": [...]` by rank; `step` counts all pushes then. In a job it has the
`"arguments": [...]` of the training program. `node` is the node that wrote the file, if there are nodes. If trainers
have a state of their own, it has theirs too, by trainer, each on the trainer's node::

    "states": [{"file": "trainer-00000.safetensors", "trainer": 0, "bytes": n, "sha256": hex, "node": 0}, ...]

It is built from the receipts of all pservers. A receipt is the fields of a `saved` event: `tag, pass, step, mode, seed,
pserver, pservers, file, bytes, sha256, tables`, and those above, but in `states` the ranks of the trainers whose states
belong to the checkpoint; `not_finite` lists tables with such values in the file. The receipt of a trainer is `tag,
checkpoint, file, bytes, sha256`. The manifest is written last, when every file is in place; files are listed by
pserver.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from clusterctl.common.files import sync_directory, write_atomic
from clusterctl.common.safe_json import MOST_BYTES, parse

NAME = "manifest.json"
VERSION = 1
#: The file of a merged model, the format in its metadata, and a mark in those that runs have made on their own.
MERGED_NAME = "model.safetensors"
MERGED_FORMAT = "clusterctl-model/1"
MERGED_MARK = "merged_by_run"

_PIECE = re.compile(r"pserver-\d{5}\.safetensors")
_STATE = re.compile(r"trainer-\d{5}\.safetensors")
_COMMON = ("tag", "pass", "step", "mode", "seed", "pservers")
_OF_CHECKPOINTS = ("checkpoint", "trainers", "lanes", "steps")
_OF_A_PIECE = ("pserver", "file", "bytes", "sha256", "tables", "node")
_OF_A_STATE = ("tag", "checkpoint", "file", "bytes", "sha256")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_TAG = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_PASS = re.compile(r"pass-(\d{5,})")
_STEP = re.compile(r"at-step-\d{9,}")
_CHECKPOINT = re.compile(r"step-\d{9,}")
_MOST = 1 << 63
_NO_STATES: Mapping[int, Mapping[str, Any]] = MappingProxyType({})


def piece_name(pserver: int) -> str:
    return f"pserver-{pserver:05d}.safetensors"


def state_name(trainer: int) -> str:
    """Return the name of the file with the state of a trainer of its own."""
    return f"trainer-{trainer:05d}.safetensors"


def all_files(manifest: Mapping[str, Any]) -> list[Any]:
    """Return the entries of all files of a save: the pieces of pservers, and the states of trainers."""
    return [*manifest["files"], *manifest.get("states", ())]


def build_manifest(
    job: str, run: str, receipts: Sequence[Mapping[str, Any]], states: Mapping[int, Mapping[str, Any]] = _NO_STATES
) -> dict[str, Any] | None:
    """Return the manifest of one tag, or None while receipts of some pservers are missing.

    `states` are the receipts of the trainers by rank.

    Raises ValueError if the receipts are not of one cut (their tag, step or number of pservers differ; see `is_cut`).
    `pass`, `step` and the trainers' `steps` are the latest: a pserver that was restarted may lack pushes of a trainer
    that has not rejoined it.
    """
    by_pserver = {int(r["pserver"]): r for r in receipts}
    if not by_pserver or len(by_pserver) < int(receipts[0]["pservers"]):
        return None
    ordered = [by_pserver[p] for p in sorted(by_pserver)]
    first = ordered[0]
    equal = [*_COMMON, *(key for key in _OF_CHECKPOINTS if key in first)]
    latest = [key for key in ("pass", "step") if not is_cut(first)] + ["steps"] * ("steps" in first)
    for key in (key for key in equal if key not in latest):
        values = [receipt.get(key) for receipt in ordered]
        if any(value != first[key] for value in values):
            raise ValueError(f"receipts of tag {first['tag']!r} are not of one cut: {key} is {values}")
    tables: dict[str, Any] = {}
    for receipt in ordered:
        for name, table in receipt["tables"].items():
            total = tables.setdefault(name, {**table, "held": 0})
            total["held"] += table["held"]
    files = [{key: r[key] for key in ("file", "pserver", "bytes", "sha256", "node") if key in r} for r in ordered]
    common = {key: first[key] for key in equal} | {key: _latest([r[key] for r in ordered]) for key in latest}
    about = ("file", "bytes", "sha256", "node")
    own = [{"trainer": rank, **{key: r[key] for key in about if key in r}} for rank, r in sorted(states.items())]
    more = {"states": own} if own else {}
    return {"v": VERSION, "job": job, "run": run, **common, "tables": tables, "files": files, **more}


def _latest(values: Sequence[Any]) -> Any:
    """Return the greatest number; of lists of numbers, that at each place."""
    return list(map(max, zip(*values))) if isinstance(values[0], list) else max(values)


def check_receipt(receipt: Mapping[str, Any], pserver: int) -> dict[str, Any]:
    """Return the fields of a receipt of pserver number `pserver`, without any others.

    Raises ValueError if it is malformed: its names become parts of paths and its numbers are computed with, also on
    other nodes.
    """
    tag = receipt.get("tag")
    if not is_tag(tag) or receipt.get("file") != piece_name(pserver):
        raise ValueError(f"malformed receipt of pserver {pserver}: tag {tag!r}, file {receipt.get('file')!r}")
    if not all(isinstance(name, str) for name in receipt.get("not_finite", ())):
        raise ValueError(f"malformed receipt of pserver {pserver}: an invalid table")
    optional = ("trainers",) if "trainers" in receipt else ()
    wholes = [receipt.get(name) for name in ("pass", "step", "seed", "pserver", "pservers", "bytes", *optional)]
    wholes += [number for name in ("lanes", "steps", "states") for number in receipt.get(name, ())]
    for table in receipt["tables"].values():
        wholes += [table["held"], *table["shape"], *([table["rows"]] if table.get("rows") is not None else [])]
    if not all(isinstance(n, int) and abs(n) < _MOST for n in wholes) or receipt["pserver"] != pserver:
        raise ValueError(f"malformed receipt of pserver {pserver}: an invalid number")
    known = (*_COMMON, *_OF_CHECKPOINTS, *_OF_A_PIECE, "not_finite", "states")
    return {name: receipt[name] for name in known if name in receipt}


def check_state_receipt(receipt: Mapping[str, Any], trainer: int) -> dict[str, Any]:
    """Return the fields of a receipt of trainer number `trainer`. Raises ValueError if it is malformed."""
    tag, size, digest = receipt.get("tag"), receipt.get("bytes"), receipt.get("sha256")
    if not is_checkpoint_tag(tag) or receipt.get("checkpoint") is not True:
        raise ValueError(f"malformed receipt of trainer {trainer}: tag {tag!r:.120} is not of a checkpoint")
    if receipt.get("file") != state_name(trainer) or not isinstance(size, int) or not 0 <= size < _MOST:
        raise ValueError(
            f"malformed receipt of trainer {trainer}: file {receipt.get('file')!r:.60}, {size!r:.60} bytes"
        )
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ValueError(f"malformed receipt of trainer {trainer}: sha256 {digest!r:.80}")
    return {name: receipt[name] for name in _OF_A_STATE}


def is_cut(metadata: Mapping[str, Any]) -> bool:
    """Return True if all pieces are of one step, given a receipt or a file's metadata.

    Outside sync mode no process waits for a model to be saved, and its pieces may be some pushes apart.
    """
    return metadata.get("mode") == "sync" or "cursors" in metadata or bool(metadata.get("checkpoint"))


def write_manifest(directory: Path, manifest: Mapping[str, Any]) -> Path:
    """Write `manifest.json`, so that a reader never sees half of it, even after a power cut."""
    path = directory / NAME
    write_atomic(path, json.dumps(manifest, indent=1, sort_keys=True).encode())
    sync_directory(directory)
    return path


def manifest_bytes(directory: Path) -> bytes:
    """Return the manifest in `directory` as it is on the disk. Raises FileNotFoundError if there is none."""
    with (directory / NAME).open("rb") as file:
        return file.read(MOST_BYTES + 1)


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """The manifest in `directory`, or None. Raises ValueError if it is not of this version."""
    try:
        data = parse(manifest_bytes(directory))
    except FileNotFoundError:
        return None
    if not isinstance(data, dict) or data.get("v") != VERSION or not isinstance(data.get("files"), list):
        raise ValueError(f"{directory / NAME} is not a manifest of version {VERSION}")
    for entry in data["files"]:
        if not isinstance(entry, dict) or not is_piece_name(entry.get("file")):
            raise ValueError(f"{directory / NAME} lists a file that is not a piece: {entry!r}")
    states = data.get("states", [])
    for entry in states if isinstance(states, list) else [None]:
        if not isinstance(entry, dict) or not is_state_name(entry.get("file")):
            raise ValueError(f"{directory / NAME} lists a file that is not the state of a trainer: {entry!r}")
    return data


def is_piece_name(name: object) -> bool:
    return isinstance(name, str) and _PIECE.fullmatch(name) is not None


def is_state_name(name: object) -> bool:
    return isinstance(name, str) and _STATE.fullmatch(name) is not None


def is_file_name(name: object) -> bool:
    """Return True if it can name a file of a save, other than the manifest."""
    return is_piece_name(name) or is_state_name(name)


def pass_tag(pass_: int) -> str:
    """Return the tag of the model that is saved at the end of a pass."""
    return f"pass-{pass_:05d}"


def pass_of(tag: str) -> int | None:
    """Return the pass of a tag of `pass_tag`, None for any other."""
    match = _PASS.fullmatch(tag)
    return int(match[1]) if match else None


def checkpoint_tag(step: int) -> str:
    """Return the tag of the checkpoint of a step. No model has it."""
    return f"step-{step:09d}"


def step_tag(step: int) -> str:
    """Return the tag of a model that is saved between passes. No checkpoint has it."""
    return f"at-step-{step:09d}"


def is_scheduled_tag(tag: str) -> bool:
    """Return True for a model that SAVE_MODEL_EVERY causes, False for one that the program names itself."""
    return pass_of(tag) is not None or _STEP.fullmatch(tag) is not None


def is_checkpoint_tag(tag: object) -> bool:
    """Return True for the tag of a checkpoint."""
    return isinstance(tag, str) and _CHECKPOINT.fullmatch(tag) is not None


def is_tag(name: object) -> bool:
    """Return True if it can name a directory of pieces, and is not a path."""
    return isinstance(name, str) and _TAG.fullmatch(name) is not None
