"""The wheel and the sdist that are built, in which nothing depends on how the clone was used."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.templates import TEMPLATES
from house.source import ROOT

pytestmark = pytest.mark.slow

OF_USE = ("workspace_template/data/train.txt-00000", "workspace_ctr/output/pass-00000/manifest.json")


def build(source: Path, target: Path, *formats: str) -> list[Path]:
    """Build with the packages of this Python: no network."""
    words = [word for name in formats for word in ("-t", name)]
    subprocess.run([sys.executable, "-m", "hatchling", "build", *words, "-d", str(target)], cwd=source, check=True)
    return sorted(target.iterdir())


def copy_of_the_clone(target: Path) -> Path:
    """Copy the files that git knows or would add, and make some that the use of a template leaves in the clone."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in [path for path in listed.stdout.split("\0") if path and (ROOT / path).is_file()]:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)
    for name in (*OF_USE, "clusterctl/__pycache__/errors.cpython-311.pyc"):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text("made by use")
    return target


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path, Path]]:
    """The wheel and the sdist of a clone, and the wheel of this sdist."""
    top = tmp_path_factory.mktemp("built")
    sdist, wheel = sorted(
        build(copy_of_the_clone(top / "clone"), top / "dist", "wheel", "sdist"), key=lambda path: path.suffix
    )
    with tarfile.open(sdist) as archive:
        archive.extractall(top / "unpacked", filter="data")
    (unpacked,) = (top / "unpacked").iterdir()
    (again,) = build(unpacked, top / "again", "wheel")
    yield wheel, sdist, again
    shutil.rmtree(top)


def members(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def test_a_wheel_built_from_the_sdist_equals_the_one_built_from_the_clone(built: tuple[Path, Path, Path]) -> None:
    wheel, _, again = built
    assert members(again) == members(wheel)


def test_the_wheel_has_every_template_and_nothing_that_use_has_left_in_the_clone(
    built: tuple[Path, Path, Path],
) -> None:
    names = set(members(built[0]))
    for template in TEMPLATES.values():
        assert {f"clusterctl/_data/{template.source}/{name}" for name in ("train.py", "prepare_data.py")} <= names
    assert "clusterctl/_data/conf.py.example" in names
    assert [name for name in names if name.endswith(OF_USE) or "__pycache__" in name] == []


def test_the_index_would_accept_both_files(built: tuple[Path, Path, Path]) -> None:
    wheel, sdist, _ = built
    command = [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
