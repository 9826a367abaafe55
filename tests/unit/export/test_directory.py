"""The directory of an export: all or nothing, and never in place of files of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.export.directory import MANIFEST, replacing, usable


def export(target: Path, **files: str) -> None:
    with replacing(usable(target), {"to": "csv"}) as new:
        for name, text in files.items():
            (new / name).write_text(text)


def fail_to_export(target: Path) -> None:
    with replacing(usable(target), {}) as new:
        (new / "a").write_text("2")
        raise KeyError


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_new_or_an_empty_directory_is_filled(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "deep" / "new", tmp_path / "empty"):
        export(target, a="1")
        assert names(target) == ["a", MANIFEST]
        assert json.loads((target / MANIFEST).read_text())["files"] == ["a"]
        assert target.stat().st_mode & 0o777 == tmp_path.joinpath("deep").stat().st_mode & 0o777
    assert names(tmp_path) == ["deep", "empty"], "nothing else is left"


def test_an_earlier_export_is_replaced_as_a_whole(tmp_path: Path) -> None:
    export(tmp_path / "out", a="1", b="2")
    export(tmp_path / "out", b="3")
    assert names(tmp_path / "out") == ["b", MANIFEST]
    assert names(tmp_path) == ["out"]


def test_an_export_that_fails_changes_nothing(tmp_path: Path) -> None:
    export(tmp_path / "out", a="1")
    for target in (tmp_path / "out", tmp_path / "other"):
        with pytest.raises(KeyError):
            fail_to_export(target)
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out" / "a").read_text() == "1"


@pytest.mark.parametrize(
    "manifest", [None, "{", "[]", '{"schema": "clusterctl-export/1", "files": 1}', '{"files": ["a"]}']
)
def test_files_of_others_are_refused(tmp_path: Path, manifest: str | None) -> None:
    (tmp_path / "a").write_text("mine")
    if manifest is not None:
        (tmp_path / MANIFEST).write_text(manifest)
    with pytest.raises(UsageError, match="no export wrote"):
        usable(tmp_path)


def test_a_file_that_was_added_to_an_export_is_not_deleted(tmp_path: Path) -> None:
    export(tmp_path / "out", a="1")
    (tmp_path / "out" / "notes").write_text("mine")
    with pytest.raises(UsageError):
        usable(tmp_path / "out")


def test_a_file_that_appears_during_an_export_is_not_deleted(tmp_path: Path) -> None:
    export = replacing(usable(tmp_path / "out"), {})
    export.__enter__()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes").write_text("mine")
    with pytest.raises(UsageError):
        export.__exit__(None, None, None)
    assert names(tmp_path / "out") == ["notes"]
    assert names(tmp_path) == ["out"]


def test_the_current_directory_and_a_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    for target in (Path(), tmp_path, Path("/"), tmp_path / "file"):
        with pytest.raises(UsageError):
            usable(target)
