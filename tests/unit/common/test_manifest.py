"""The states of trainers in manifests, and their receipts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterctl.common.manifest import all_files, build_manifest, check_receipt, check_state_receipt, read_manifest

DIGEST = "0" * 64
STATE = {"tag": "step-000000005", "checkpoint": True, "file": "trainer-00001.safetensors", "bytes": 9, "sha256": DIGEST}


def piece(**more: Any) -> dict[str, Any]:
    about = {"tag": "step-000000005", "pass": 0, "step": 5, "mode": "sync", "seed": 0, "pservers": 1, "tables": {}}
    file = {"pserver": 0, "file": "pserver-00000.safetensors", "bytes": 5, "sha256": DIGEST, "node": 0}
    return {**about, **file, "checkpoint": True, "trainers": 2, "lanes": [1, 0], **more}


def test_states_are_listed_apart_from_pieces() -> None:
    manifest = build_manifest("JOB", "0001", [piece(states=[1])], {1: {**STATE, "node": 3}})
    assert manifest is not None
    assert [file["file"] for file in manifest["files"]] == ["pserver-00000.safetensors"]
    about = {"trainer": 1, "file": "trainer-00001.safetensors", "bytes": 9, "sha256": DIGEST, "node": 3}
    assert manifest["states"] == [about]
    assert all_files(manifest) == [*manifest["files"], about]


def test_a_receipt_of_a_pserver_has_the_ranks_of_the_states() -> None:
    assert check_receipt(piece(states=[0, 1]), 0)["states"] == [0, 1]
    for strange in ([1.5], ["1"], [1 << 70], "1", [None]):
        with pytest.raises(ValueError, match="an invalid number"):
            check_receipt(piece(states=strange), 0)


def test_a_receipt_that_names_another_pserver_is_refused() -> None:
    with pytest.raises(ValueError, match="malformed receipt of pserver 0"):
        check_receipt(piece(pserver=1), 0)


def test_a_receipt_of_a_trainer_has_what_the_manifest_needs_and_nothing_else() -> None:
    assert check_state_receipt({**STATE, "pserver": 7, "job": "JOB"}, 1) == STATE


@pytest.mark.parametrize(
    "wrong",
    [
        *({"tag": tag} for tag in ("pass-00000", None)),
        *({"file": file} for file in ("trainer-00000.safetensors", "../x")),
        *({"bytes": size} for size in (-1, 1 << 70)),
        *({"sha256": digest} for digest in ("Z" * 64, 7)),
        {"checkpoint": False},
    ],
)
def test_a_malformed_receipt_of_a_trainer_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="malformed receipt of trainer 1"):
        check_state_receipt({**STATE, **wrong}, 1)


@pytest.mark.parametrize("name", ["pserver-00000.safetensors", "../trainer-00000.safetensors", "trainer-0.safetensors"])
def test_a_manifest_with_another_file_as_a_state_is_refused(tmp_path: Path, name: str) -> None:
    manifest = build_manifest("JOB", "0001", [piece(states=[1])], {1: {**STATE, "file": name}})
    for states in (manifest and manifest["states"], {"file": "trainer-00000.safetensors"}, 5):
        (tmp_path / "manifest.json").write_text(json.dumps({**(manifest or {}), "states": states}))
        with pytest.raises(ValueError, match="not the state of a trainer"):
            read_manifest(tmp_path)
