"""Lock files that uv and pip have written, and damaged ones: the files that they select for a kind of node."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.common.requirements import file_of, names_in, of_directory
from clusterctl.common.wheels import Wheel, WheelStore, describe
from clusterctl.errors import ConfigError, NodeError
from clusterctl.setup import read_requirements
from clusterctl.setup.locks import LockFile, LockSelection, read_lock
from clusterctl.setup.locks.lock_file import PYPI, PYPI_FILES
from clusterctl.setup.platforms import Kind, Platform
from support.uv import real_uv, write_program
from support.wheels import make_wheel, tiny

RECORDED = Path(__file__).parent / "recorded"
DEBIAN = Platform(Kind("cp", "3.11", "x86_64", True), (2, 36), "3.11.2")
ALPINE = Platform(Kind("cp", "3.12", "aarch64", False), None, "3.12.7")
PYPY = Platform(Kind("pp", "3.10", "x86_64", True), (2, 36), "3.10.14")
EXPECTED = {"anyio", "certifi", "h11", "httpcore", "httpx", "idna", "msgpack", "sniffio", "socksio"}
HEX = "ab" * 32


PROJECT = '[project]\nname = "training"\nversion = "0.1"\nrequires-python = ">=3.10"\n'


def contents(name: str) -> bytes:
    """Return a recorded lock file, as if it came from PyPI."""
    data = (RECORDED / name).read_bytes().replace(b"https://index.example/simple", PYPI[0].encode())
    return data.replace(b"files.index.example", PYPI_FILES.encode())


def recorded(name: str = "pylock.toml") -> LockFile:
    return read_lock(Path("w/pylock.toml"), contents(name))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a workspace with the recorded uv.lock and its pyproject.toml."""
    real_uv()
    (tmp_path / "uv.lock").write_bytes(contents("uv.lock"))
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    return tmp_path


def exported(directory: Path) -> LockFile:
    return read_lock(directory / "uv.lock", (directory / "uv.lock").read_bytes())


def pick(lock: LockFile, platform: Platform = DEBIAN) -> LockSelection:
    return lock.pick(platform, WheelStore(Path("nowhere")))


def pylock(rest: str, head: str = 'lock-version = "1.0"\ncreated-by = "me"') -> str:
    return f'{head}\n[[packages]]\nname = "tiny"\nversion = "1.0"\n{rest}\n'


def wheel(url: str, hashes: str = f'sha256 = "{HEX}"') -> str:
    return f'[[packages.wheels]]\nname = "{url.rpartition("/")[2]}"\nurl = "{url}"\nhashes = {{ {hashes} }}'


@pytest.mark.parametrize("platform", [DEBIAN, ALPINE, PYPY], ids=["debian", "alpine", "pypy"])
def test_both_kinds_of_lock_select_the_same_files(platform: Platform, project: Path) -> None:
    """No extras of the project (tqdm), no development group (pytest), and not what only Windows needs (colorama)."""
    one, two = (pick(lock, platform) for lock in (exported(project), recorded()))
    assert sorted(one.files, key=str) == sorted(two.files, key=str)
    assert (one.urls, one.pinned) == (two.urls, two.pinned)
    names = {wheel.name.lower() for wheel in one.wheels}
    assert {file.name for file in one.files} >= EXPECTED
    assert not names & {"tqdm", "pytest", "colorama", "mine", "training"}
    assert all(wheel.size and wheel.digest in one.urls for wheel in one.wheels)


def test_the_wheel_with_the_best_tag_of_the_node_is_selected() -> None:
    found = {platform: pick(recorded(), platform) for platform in (DEBIAN, ALPINE)}
    [glibc], [musl] = ([w.file for w in one.wheels if w.name == "msgpack"] for one in found.values())
    assert "-cp311-cp311-manylinux" in glibc
    assert "x86_64" in glibc
    assert "-cp312-cp312-musllinux" in musl
    assert "aarch64" in musl


def test_a_package_without_wheels_is_left_to_pip_with_its_hash() -> None:
    [line] = pick(recorded()).pinned
    assert line.startswith("antlr4-python3-runtime==4.9.3 --hash=sha256:")


def test_a_lock_of_pip_which_has_no_sizes_is_left_to_pip() -> None:
    picked = pick(recorded("pip.pylock.toml"))
    assert picked.wheels == []
    digest = "477b8ad30d66fc905c5388351e83b9ac25824b00e82c0d052b72ea6392636dfd"
    assert picked.pinned == [f"pyzmq==27.3.0 --hash=sha256:{digest}"]
    with pytest.raises(NodeError, match=r"pyzmq 27\.3\.0: pip got another file than pyzmq-27.*whl of pylock\.toml"):
        picked.verify([Wheel("pyzmq-27.3.0-py3-none-any.whl", HEX, 9)], "pylock.toml")


def test_wheels_that_a_node_has_are_accepted_only_if_they_are_those_of_the_lock() -> None:
    picked = pick(recorded())
    built = Wheel("antlr4_python3_runtime-4.9.3-py3-none-any.whl", HEX, 9)
    numpy = Wheel("numpy-9-py3-none-any.whl", HEX, 9)
    assert picked.allows([*picked.wheels, built], [])
    assert picked.allows([*picked.wheels, built, numpy], ["numpy"])
    assert not picked.allows(picked.wheels, [])
    assert not picked.allows([*picked.wheels, built, numpy], [])
    assert not picked.allows([*picked.wheels, built, numpy, numpy], ["numpy"])
    other = picked.wheels[0]._replace(digest=HEX)
    assert not picked.allows([other, *picked.wheels[1:], built], [])


def test_the_names_of_a_lock_are_known_on_the_nodes_too(tmp_path: Path) -> None:
    for name, more in (("uv.lock", {"pytest", "training"}), ("pylock.toml", set())):
        shutil.copy(RECORDED / name, tmp_path)
        assert {*EXPECTED, *more} <= set(names_in(tmp_path) or ())
        assert file_of(tmp_path) == name
        (tmp_path / name).unlink()
    assert set(recorded().names) > {"antlr4-python3-runtime", "colorama", "httpx", "msgpack"}


def test_a_lock_counts_by_its_bytes_and_the_needs_of_the_runtime(tmp_path: Path, project: Path) -> None:
    locked = (project / "uv.lock").read_bytes()
    (project / "uv.lock").unlink()
    (tmp_path / "requirements.txt").write_text("numpy\n")
    assert of_directory(tmp_path, runtime=False) == ["numpy"]
    (tmp_path / "uv.lock").write_bytes(locked)
    [line, *more] = of_directory(tmp_path, runtime=True)
    assert line.startswith("uv.lock sha256:")
    assert more == ["numpy", "pyzmq", "cryptography"]
    requirements = read_requirements(tmp_path, runtime=True)
    assert requirements.lines == (line, *more)
    assert (requirements.source, requirements.ignored) == (f"{tmp_path}/uv.lock", "requirements.txt")
    with (tmp_path / "uv.lock").open("a") as f:
        f.write("# changed\n")
    assert of_directory(tmp_path, runtime=False) != [line]


def test_two_lock_files_are_refused(tmp_path: Path) -> None:
    for name in ("uv.lock", "pylock.toml"):
        shutil.copy(RECORDED / name, tmp_path)
    with pytest.raises(ConfigError, match=r"has two lock files, pylock\.toml and uv\.lock"):
        read_requirements(tmp_path, runtime=True)


def test_wheels_of_the_workspace_are_verified_and_stored(tmp_path: Path) -> None:
    store = WheelStore(tmp_path / "store")
    wheel = describe(tiny(tmp_path / "wheels"))
    text = pylock(f'[packages.archive]\npath = "wheels/{wheel.file}"\nhashes = {{ sha256 = "{wheel.digest}" }}')
    picked = read_lock(tmp_path / "pylock.toml", text.encode()).pick(DEBIAN, store)
    assert (picked.wheels, picked.urls, picked.pinned) == ([wheel], {}, [])
    assert store.has(wheel)
    tiny(tmp_path / "wheels", "1.0").write_bytes(b"another")
    with pytest.raises(ConfigError, match=r"tiny 1\.0: .*tiny-1\.0-py3-none-any\.whl does not match its sha256 in py"):
        read_lock(tmp_path / "pylock.toml", text.encode()).pick(DEBIAN, store)
    (tmp_path / "wheels" / wheel.file).unlink()
    make_wheel(tmp_path / "outside", "tiny", "1.0", {})
    work = tmp_path / "work"
    (work / "wheels").mkdir(parents=True)
    (work / "wheels" / wheel.file).symlink_to(tmp_path / "outside" / wheel.file)
    with pytest.raises(ConfigError, match="leads out of the workspace"):
        read_lock(work / "pylock.toml", text.encode()).pick(DEBIAN, store)


def test_other_indexes_are_passed_to_pip_and_files_of_no_index_by_their_url() -> None:
    url = "https://host/x/tiny-1.0%2Bcpu-py3-none-any.whl"
    file = f'url = "{url}", size = 9, hashes = {{ sha256 = "{HEX}" }}'
    text = pylock(f'index = "https://host/simple"\nwheels = [{{ {file} }}]').replace('"1.0"\nindex', '"1.0+cpu"\nindex')
    picked = pick(read_lock(Path("pylock.toml"), text.encode()))
    assert picked.indexes == ["--extra-index-url https://host/simple"]
    assert [wheel.file for wheel in picked.wheels] == ["tiny-1.0+cpu-py3-none-any.whl"]
    direct = pylock(f'[packages.archive]\nurl = "{url}"\nhashes = {{ sha256 = "{HEX}" }}')
    picked = pick(read_lock(Path("pylock.toml"), direct.encode()))
    assert picked.pinned == [f"tiny @ {url} --hash=sha256:{HEX}"]
    indexed = pylock('index = "https://host/simple"\n' + wheel(url.replace("%2Bcpu", "")))
    picked = pick(read_lock(Path("pylock.toml"), indexed.encode()))
    assert (picked.pinned, picked.indexes) == (
        [f"tiny==1.0 --hash=sha256:{HEX}"],
        ["--extra-index-url https://host/simple"],
    )


def test_a_lock_of_uv_names_wheels_of_the_workspace(project: Path, tmp_path: Path) -> None:
    wheel = describe(tiny(project / "wheels"))
    source = f'tiny = {{ path = "wheels/{wheel.file}" }}'
    (project / "pyproject.toml").write_text(f'{PROJECT}dependencies = ["tiny"]\n[tool.uv.sources]\n{source}\n')
    (project / "uv.lock").unlink()
    subprocess.run([real_uv(), "lock", "--offline"], cwd=project, check=True, capture_output=True)
    assert exported(project).pick(DEBIAN, WheelStore(tmp_path / "store")).wheels == [wheel]


@pytest.mark.parametrize(
    ("lock", "message"),
    [
        ("version = ", "uv export failed: .*TOML parse error"),
        ("version = 9", "uv export failed: .*version"),
        ("version = 1\nrevision = 3\n", "uv export failed: "),
        (contents("uv.lock").decode().replace(">=3.10", ">=3.12"), "has nothing for python 3.11 x86_64: .*>=3.12"),
    ],
    ids=["damaged", "a later format", "no project", "another python"],
)
def test_a_lock_that_uv_refuses_is_a_clear_error(project: Path, lock: str, message: str) -> None:
    (project / "uv.lock").write_text(lock)
    with pytest.raises(ConfigError, match=message) as caught:
        pick(exported(project))
    assert caught.value.message.startswith(str(project / "uv.lock"))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "found no uv on this machine"),
        ('test "$1" = --version && echo uv 0.6.14; exit 2', r"/uv 0\.6\.14 is too old for it"),
        ("echo broken >&2; exit 2", "uv export failed: broken"),
        ("exit 3", "uv export failed: exit code 3"),
    ],
    ids=["none", "old", "broken", "silent"],
)
def test_a_machine_without_a_uv_that_exports_gets_the_command_to_run_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, message: str
) -> None:
    if script:
        write_program(tmp_path / "bin/uv", script)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "uv.lock").write_text("version = 1")
    with pytest.raises(ConfigError, match=message) as caught:
        exported(tmp_path)
    assert "uv export --frozen" in str(caught.value.hint) or "uv lock" in str(caught.value.hint)


FILE = "tiny-1.0-py3-none-any.whl"
SHA = f'hashes = {{ sha256 = "{HEX}" }}'


def wheel_row(place: str, hashes: str = SHA) -> str:
    return pylock(f"wheels = [{{ {place}, {hashes} }}]")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lock-version", "is not TOML"),
        ("\xff", "is not TOML"),
        (pylock("wheels = []", 'lock-version = "2.0"\ncreated-by = "me"'), "has lock-version '2.0'"),
        (pylock("", 'created-by = "me"'), "is damaged: .*lock-version"),
        (pylock("wheels = 3"), "is damaged"),
        (pylock(""), "is damaged"),
        (pylock('directory = { path = "../x" }'), r"tiny is the directory '\.\./x'"),
        (pylock('vcs = { type = "git", url = "https://h/x", commit-id = "1" }'), "git, which no hash verifies"),
        (wheel_row(f'url = "https://h/{FILE}"', 'hashes = { md5 = "1" }'), f"tiny 1.0: no sha256 for {FILE}"),
        (wheel_row(f'url = "file:///x/{FILE}"'), "not a URL that nodes can fetch"),
        (wheel_row(f'path = "../{FILE}"'), "outside the workspace"),
        (wheel_row(f'path = "/x/{FILE}"'), "outside the workspace"),
        (wheel_row(f'path = "x/{FILE}"'), "cannot read x/tiny"),
        (wheel_row('url = "https://h/tiny-1.0-cp27-none-any.whl"'), "has nothing for python 3.11 x86_64"),
        (pylock(f'[packages.archive]\nurl = "https://h/x.exe"\n{SHA}'), "is not a wheel"),
        (pylock(f'[packages.archive]\nurl = "https://h/..%2F{FILE}"\n{SHA}'), "is not a wheel"),
        (pylock(f'[packages.archive]\nurl = "https://["\n{SHA}'), "is not a URL"),
    ],
)
def test_a_damaged_or_hostile_lock_is_a_clear_error(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        pick(read_lock(Path("pylock.toml"), text.encode("latin-1")))
    assert caught.value.message.startswith("pylock.toml")
    assert caught.value.hint
