"""Lock files that uv and pip have written, and damaged ones: the files that they select for a kind of node."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from clusterctl.common.requirements import file_of, names_in, of_directory
from clusterctl.common.wheels import Wheel, WheelStore, describe
from clusterctl.errors import ConfigError, NodeError
from clusterctl.setup import read_requirements
from clusterctl.setup.locks import LockFile, Picked, read_lock
from clusterctl.setup.locks.lock_file import PYPI, PYPI_FILES
from clusterctl.setup.platforms import Kind, Platform
from support.wheels import make_wheel, tiny

RECORDED = Path(__file__).parent / "recorded"
DEBIAN = Platform(Kind("cp", "3.11", "x86_64", True), (2, 36), "3.11.2")
ALPINE = Platform(Kind("cp", "3.12", "aarch64", False), None, "3.12.7")
PYPY = Platform(Kind("pp", "3.10", "x86_64", True), (2, 36), "3.10.14")
EXPECTED = {"anyio", "certifi", "h11", "httpcore", "httpx", "idna", "msgpack", "sniffio", "socksio"}
HEX = "ab" * 32
TINY = f'hash = "sha256:{HEX}", size = 9'


def recorded(name: str) -> LockFile:
    """Return a recorded lock file, as if it had the name that its kind has in a workspace, and came from PyPI."""
    data = (RECORDED / name).read_bytes().replace(b"https://index.example/simple", PYPI[0].encode())
    data = data.replace(b"files.index.example", PYPI_FILES.encode())
    return read_lock(Path("w") / name.removeprefix("pip."), data)


def pick(lock: LockFile, platform: Platform = DEBIAN) -> Picked:
    return lock.pick(platform, WheelStore(Path("nowhere")))


def uv_lock(packages: str, dependencies: str = '{ name = "tiny" }', head: str = "version = 1") -> str:
    root = f'[[package]]\nname = "mine"\nsource = {{ virtual = "." }}\ndependencies = [{dependencies}]\n'
    return f"{head}\n{root}{packages}"


def tiny_lock(rest: str, source: str = f'{{ registry = "{PYPI[0]}" }}') -> str:
    return uv_lock(f'[[package]]\nname = "tiny"\nversion = "1.0"\nsource = {source}\n{rest}\n')


def pylock(rest: str, head: str = 'lock-version = "1.0"\ncreated-by = "me"') -> str:
    return f'{head}\n[[packages]]\nname = "tiny"\nversion = "1.0"\n{rest}\n'


def wheel(url: str, hashes: str = f'sha256 = "{HEX}"') -> str:
    return f'[[packages.wheels]]\nname = "{url.rpartition("/")[2]}"\nurl = "{url}"\nhashes = {{ {hashes} }}'


@pytest.mark.parametrize("platform", [DEBIAN, ALPINE, PYPY], ids=["debian", "alpine", "pypy"])
def test_both_kinds_of_lock_select_the_same_files(platform: Platform) -> None:
    """No extras of the project (tqdm), no development group (pytest), and not what only Windows needs (colorama)."""
    one, two = (pick(recorded(name), platform) for name in ("uv.lock", "pylock.toml"))
    assert sorted(one.files, key=str) == sorted(two.files, key=str)
    assert (one.urls, one.pinned) == (two.urls, two.pinned)
    names = {wheel.name.lower() for wheel in one.wheels}
    assert {file.name for file in one.files} >= EXPECTED
    assert not names & {"tqdm", "pytest", "colorama", "mine", "training"}
    assert all(wheel.size and wheel.digest in one.urls for wheel in one.wheels)


def test_the_wheel_with_the_best_tag_of_the_node_is_selected() -> None:
    found = {platform: pick(recorded("uv.lock"), platform) for platform in (DEBIAN, ALPINE)}
    [glibc], [musl] = ([w.file for w in one.wheels if w.name == "msgpack"] for one in found.values())
    assert "-cp311-cp311-manylinux" in glibc
    assert "x86_64" in glibc
    assert "-cp312-cp312-musllinux" in musl
    assert "aarch64" in musl


def test_a_package_without_wheels_is_left_to_pip_with_its_hash() -> None:
    [line] = pick(recorded("uv.lock")).pinned
    assert line.startswith("antlr4-python3-runtime==4.9.3 --hash=sha256:")


def test_a_lock_of_pip_which_has_no_sizes_is_left_to_pip() -> None:
    picked = pick(recorded("pip.pylock.toml"))
    assert picked.wheels == []
    digest = "477b8ad30d66fc905c5388351e83b9ac25824b00e82c0d052b72ea6392636dfd"
    assert picked.pinned == [f"pyzmq==27.3.0 --hash=sha256:{digest}"]
    with pytest.raises(NodeError, match=r"pyzmq 27\.3\.0: pip got another file than pyzmq-27.*whl of pylock\.toml"):
        picked.verify([Wheel("pyzmq-27.3.0-py3-none-any.whl", HEX, 9)], "pylock.toml")


def test_wheels_that_a_node_has_are_accepted_only_if_they_are_those_of_the_lock() -> None:
    picked = pick(recorded("uv.lock"))
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
    assert recorded("uv.lock").names == ["antlr4-python3-runtime", "colorama", "httpx", "msgpack"]


def test_a_lock_counts_by_its_bytes_and_the_needs_of_the_runtime(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy\n")
    assert of_directory(tmp_path, runtime=False) == ["numpy"]
    shutil.copy(RECORDED / "uv.lock", tmp_path)
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
    source = '{ path = "wheels/tiny-1.0-py3-none-any.whl" }'
    row = f'{{ filename = "{wheel.file}", hash = "sha256:{wheel.digest}" }}'
    text = tiny_lock(f"wheels = [{row}]", source)
    picked = read_lock(tmp_path / "uv.lock", text.encode()).pick(DEBIAN, store)
    assert (picked.wheels, picked.urls, picked.pinned) == ([wheel], {}, [])
    assert store.has(wheel)
    other = pylock(f'[packages.archive]\npath = "wheels/{wheel.file}"\nhashes = {{ sha256 = "{wheel.digest}" }}')
    assert read_lock(tmp_path / "pylock.toml", other.encode()).pick(DEBIAN, store).wheels == [wheel]
    tiny(tmp_path / "wheels", "1.0").write_bytes(b"another")
    with pytest.raises(ConfigError, match=r"tiny 1\.0: .*tiny-1\.0-py3-none-any\.whl does not match its sha256 in uv"):
        read_lock(tmp_path / "uv.lock", text.encode()).pick(DEBIAN, store)
    (tmp_path / "wheels" / wheel.file).unlink()
    make_wheel(tmp_path / "outside", "tiny", "1.0", {})
    work = tmp_path / "work"
    (work / "wheels").mkdir(parents=True)
    (work / "wheels" / wheel.file).symlink_to(tmp_path / "outside" / wheel.file)
    with pytest.raises(ConfigError, match="leads out of the workspace"):
        read_lock(work / "uv.lock", text.encode()).pick(DEBIAN, store)


def test_other_indexes_are_passed_to_pip_and_files_of_no_index_by_their_url() -> None:
    url = "https://host/x/tiny-1.0%2Bcpu-py3-none-any.whl"
    text = tiny_lock(f'wheels = [{{ url = "{url}", {TINY} }}]', '{ registry = "https://host/simple" }')
    picked = pick(read_lock(Path("uv.lock"), text.encode()))
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


def test_extras_of_dependencies_and_the_right_fork_are_followed() -> None:
    fork = "".join(
        f'[[package]]\nname = "tiny"\nversion = "{version}"\nsource = {{ registry = "i" }}\n'
        f"resolution-markers = [\"python_version {sign} '3.11'\"]\n"
        f'wheels = [{{ url = "https://h/tiny-{version}-py3-none-any.whl", {TINY} }}]\n{more}\n'
        for version, sign, more in (
            ("1.0", "<", ""),
            ("2.0", ">=", '[package.optional-dependencies]\nfast = [{ name = "quick" }]'),
        )
    )
    quick = (
        '[[package]]\nname = "quick"\nversion = "3"\nsource = { registry = "i" }\n'
        f'wheels = [{{ url = "https://h/quick-3-py3-none-any.whl", {TINY} }}]\n'
    )
    both = uv_lock(fork + quick, '{ name = "tiny", extra = ["fast"] }')
    assert [(f.name, f.version) for f in pick(read_lock(Path("uv.lock"), both.encode())).files] == [
        ("quick", "3"),
        ("tiny", "2.0"),
    ]


FILE = "tiny-1.0-py3-none-any.whl"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("uv.lock", "version = ", "is not TOML"),
        ("uv.lock", "\xff", "is not TOML"),
        ("uv.lock", uv_lock("", head="version = 2"), "version 2 of the format"),
        ("uv.lock", "package = []", "version None of the format"),
        ("uv.lock", "version = 1\npackage = 3", "'package' is not a list of tables"),
        ("uv.lock", "version = 1\npackage = []", "no project in its own directory"),
        ("uv.lock", uv_lock("", head='version = 1\nrequires-python = ">=3.12"'), r"requires python >=3\.12, not 3\.11"),
        ("uv.lock", uv_lock("", head='version = 1\nrequires-python = "new"'), "requires-python: "),
        ("uv.lock", uv_lock(""), "0 packages fit 'tiny'"),
        ("uv.lock", uv_lock("", '{ name = "tiny", marker = "so what" }'), "cannot evaluate the marker"),
        ("uv.lock", uv_lock("", "3"), "'dependencies' is not a list of tables"),
        ("uv.lock", uv_lock('[[package]]\nname = "../x"\nsource = { registry = "i" }'), "no valid name or source"),
        ("uv.lock", uv_lock('[[package]]\nname = "tiny"'), "no valid name or source"),
        ("uv.lock", tiny_lock("", '{ git = "https://h/x?rev=1#2" }'), "tiny comes from git"),
        ("uv.lock", tiny_lock("", '{ editable = "../tiny" }'), r"tiny is the directory '\.\./tiny'"),
        ("uv.lock", tiny_lock(""), "no wheel of tiny runs on python 3.11 x86_64"),
        ("uv.lock", tiny_lock("wheels = [3]"), "'wheels' is not a list of tables"),
        ("uv.lock", tiny_lock("sdist = 3"), "is not a table"),
        ("uv.lock", tiny_lock(f'wheels = [{{ url = "https://h/{FILE}" }}]'), f"tiny 1.0: no sha256 for {FILE}"),
        ("uv.lock", tiny_lock(f'wheels = [{{ url = "https://h/{FILE}", hash = "md5:1" }}]'), "no sha256"),
        ("uv.lock", tiny_lock(f'wheels = [{{ url = "file:///x/{FILE}", {TINY} }}]'), "not a URL that nodes can fetch"),
        ("uv.lock", tiny_lock(f'wheels = [{{ url = "https://h/..%2F{FILE}", {TINY} }}]'), "is not a wheel"),
        ("uv.lock", tiny_lock(f'wheels = [{{ url = "https://[", {TINY} }}]'), "is not a URL"),
        ("uv.lock", tiny_lock(f'wheels = [{{ url = "https://h/x.exe", {TINY} }}]'), "is not a wheel"),
        ("uv.lock", tiny_lock(f'wheels = [{{ filename = "{FILE}", {TINY} }}]', f'{{ path = "../{FILE}" }}'), "outside"),
        ("uv.lock", tiny_lock(f'wheels = [{{ filename = "{FILE}", {TINY} }}]', f'{{ path = "/x/{FILE}" }}'), "outside"),
        ("uv.lock", tiny_lock(f'wheels = [{{ path = "{FILE}", {TINY} }}]', '{ registry = "../x" }'), "outside"),
        ("uv.lock", tiny_lock(f'wheels = [{{ path = "{FILE}", {TINY} }}]', '{ registry = "x" }'), "cannot read x/tiny"),
        ("pylock.toml", "lock-version", "is not TOML"),
        (
            "pylock.toml",
            pylock("wheels = []", 'lock-version = "2.0"\ncreated-by = "me"'),
            "has lock-version '2.0'",
        ),
        ("pylock.toml", pylock("", 'created-by = "me"'), "is damaged: .*lock-version"),
        ("pylock.toml", pylock("wheels = 3"), "is damaged"),
        ("pylock.toml", pylock(""), "is damaged"),
        ("pylock.toml", pylock(wheel(f"file:///x/{FILE}")), "not a URL that nodes can fetch"),
        ("pylock.toml", pylock(wheel("https://h/x.exe")), "is not a wheel|is damaged"),
        ("pylock.toml", pylock(wheel(f"https://h/{FILE}", "md5 = '1'")), f"tiny 1.0: no sha256 for {FILE}"),
        ("pylock.toml", pylock('directory = { path = "../x" }'), r"tiny is the directory '\.\./x'"),
        (
            "pylock.toml",
            pylock('vcs = { type = "git", url = "https://h/x", commit-id = "1" }'),
            "tiny comes from git, which no hash verifies",
        ),
        (
            "pylock.toml",
            pylock(f'wheels = [{{ url = "https://h/{FILE}", hashes = {{ md5 = "1" }} }}]'),
            f"tiny 1.0: no sha256 for {FILE}",
        ),
        (
            "pylock.toml",
            pylock(f'wheels = [{{ path = "../{FILE}", hashes = {{ sha256 = "{HEX}" }} }}]'),
            "outside the workspace",
        ),
        (
            "pylock.toml",
            pylock(f'wheels = [{{ url = "https://h/tiny-1.0-cp27-none-any.whl", hashes = {{ sha256 = "{HEX}" }} }}]'),
            "has nothing for python 3.11 x86_64",
        ),
    ],
)
def test_a_damaged_or_hostile_lock_is_a_clear_error(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        pick(read_lock(Path(name), text.encode("latin-1")))
    assert caught.value.message.startswith(name)
    assert caught.value.hint
