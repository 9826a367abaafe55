"""Setup on one node: it leaves an environment that works, or nothing."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.agent.node.locks import EnvironmentsLock
from clusterctl.agent.operations.setup import facts
from clusterctl.agent.packages.venvs import Venvs, find_for_job, in_environment
from clusterctl.agent.packages.wheel_install import shebang
from clusterctl.cluster import AgentCall
from clusterctl.common.files import write_json
from clusterctl.common.pip import _current_package, uv_variables
from clusterctl.common.requirements import effective, logical_lines, project_names
from clusterctl.common.tree import END, HEADER
from clusterctl.common.wheels import Wheel, WheelStore, describe
from clusterctl.dispatch import relay_plan
from clusterctl.errors import NodeError, RefusedError
from clusterctl.inventory import Node
from clusterctl.setup import NodeGroup, Requirements
from clusterctl.setup import setup as nodes
from clusterctl.setup.downloads import Downloads, explain
from clusterctl.setup.platforms import kind_of, platform_of
from clusterctl.setup.transfer import missing_of, send_files
from support.processes import assert_none_left, processes_with_environment
from support.pythons import bare_python, lend_pip
from support.wheels import make_wheel, tiny
from unit.agent.nodes import PYTHONS, PipeCluster, ask, asked
from unit.agent.specs import make_spec

VERSIONS = sorted({"3.9", "3.13"} & set(PYTHONS)) or [f"3.{sys.version_info.minor}"]
REQUEST = {"op": "setup", "requirements": ["tiny"]}


def store_of(directory: Path, *files: Path) -> tuple[WheelStore, list[Wheel]]:
    """Return this machine's store, holding these wheels."""
    store = WheelStore(directory)
    directory.mkdir()
    return store, [store.adopt(file) for file in files]


def install(call: AgentCall, lock: list[Wheel], store: WheelStore) -> dict[str, Any]:
    call.receive()
    call.send({"do": "offer", "lock": lock, "online": False, "options": []})
    missing = [lock[index] for index in call.receive()["missing"]]
    send_files(call, missing, store)
    call.send({"do": "build", "lock": lock})
    return call.result()


def ours(home: Path) -> Path:
    return home / "root/.clusterctl"


def leftovers(home: Path) -> list[str]:
    return [path.name for place in ("venvs", "wheels") for path in (ours(home) / place).glob(".*")]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_environment_is_created_without_pip_or_venv_and_kept(version: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    store, lock = store_of(tmp_path / "store", tiny(tmp_path))
    with asked(home, REQUEST, python=PYTHONS[version]) as call:
        made = install(call, lock, store)
    assert made["built"]
    venv = ours(home) / "venvs" / made["environment"]

    def run(*arguments: object) -> str:
        return subprocess.run(
            [str(argument) for argument in arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    assert run(venv / "bin/python", "-c", "import sys, tiny; print(sys.prefix, tiny.VERSION)") == f"{venv} 1.0"
    assert run(venv / "bin/tiny-say") == "tiny 1.0"
    assert run(venv / "bin/tiny-plain") == str(venv)
    listed = "import importlib.metadata as m; print([d.version for d in m.distributions() if d.name == 'tiny'])"
    if version != "3.9":
        assert run(venv / "bin/python", "-c", listed) == "['1.0']"
    assert leftovers(home) == []

    with asked(home, REQUEST, python=PYTHONS[version]) as call:
        facts = call.receive()["facts"]
        assert (facts["environment"], facts["lock"]) == (made["environment"], [list(wheel) for wheel in lock])
        call.send({"do": "keep"})
        assert call.result() == {"environment": made["environment"], "built": False}
    other = {**REQUEST, "requirements": ["another"]}
    with asked(home, other, python=PYTHONS[version]) as call:
        assert call.receive()["facts"]["environment"] is None


def test_the_package_that_is_being_installed_is_reported(tmp_path: Path) -> None:
    home = tmp_path / "home"
    store, lock = store_of(tmp_path / "store", tiny(tmp_path))
    ask(home, {"op": "jobs"})
    [peer] = (ours(home) / "lib").glob("*/clusterctl/agent/peer.py")
    with peer.open("a") as f:
        f.write("NEWS_S = 0.0\n")
    reports: list[Any] = []
    with asked(home, REQUEST) as call:
        call.on_alive = reports.append
        install(call, lock, store)
    assert reports == [{"alive": True, "step": "install", "package": "tiny"}]


def test_the_steps_of_nodes_are_reported_in_our_words(tmp_path: Path) -> None:
    cluster = PipeCluster(tmp_path, sys.executable, nodes=1)
    steps: list[str] = []
    downloads = Downloads(tmp_path / "cache")
    options, requirements = nodes.SetupOptions(), Requirements("", ("tiny",))
    work = nodes._Setup(cluster, requirements, options, print, downloads, lambda node, words: steps.append(words))
    for about in ({"step": "fetch", "package": "tiny"}, {"step": "choose", "package": ""}):
        work._on_alive(cluster.nodes[0], {"alive": True, **about})
    for wrong in ({"step": ["fetch"], "package": "x"}, {"step": "rm", "package": "x"}, {"step": "fetch", "package": 7}):
        work._on_alive(cluster.nodes[0], {"alive": True, **wrong})
    assert steps == ["fetching tiny", "resolving"]


@pytest.mark.parametrize(
    ("output", "package"),
    [
        ("", ""),
        ("Collecting numpy>=1.2 (from x)\n  Downloading numpy-2.0-cp311.whl (18 MB)\n", "numpy"),
        ("Collecting a\nCollecting b-c.d==1\n", "b-c.d"),
        ("Collecting a\nBuilding wheel for c (setup.py): started\n", "c"),
        ("x" * 5000 + "\nno Collecting here\n", ""),
    ],
    ids=["nothing", "downloading", "second", "building", "none"],
)
def test_the_package_that_pip_works_on_is_known_from_its_output(output: str, package: str, tmp_path: Path) -> None:
    path = tmp_path / "output"
    path.write_text(output)
    with path.open("rb") as f:
        assert _current_package(f.fileno()) == package


def test_a_wheel_that_arrives_damaged_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    home = tmp_path / "home"
    store, lock = store_of(tmp_path / "store", tiny(tmp_path))
    data = bytearray(store.path(lock[0]).read_bytes())
    data[len(data) // 2] ^= 1
    store.path(lock[0]).write_bytes(data)
    with asked(home, REQUEST) as call, pytest.raises(NodeError, match="does not have the announced contents"):
        install(call, lock, store)
    assert leftovers(home) == []
    assert list((ours(home) / "wheels").iterdir()) == []


@contextlib.contextmanager
def chained(
    directory: Path, lock: list[Wheel], length: int, python: str = sys.executable
) -> Iterator[tuple[AgentCall, AgentCall]]:
    """Two nodes that relay: the first, run by `python`, gets the stream, and the second gets it from the first."""
    with asked(directory / "first", REQUEST, python=python) as first, asked(directory / "second", REQUEST) as second:
        addresses = {}
        for node, call in enumerate((first, second)):
            call.receive()
            call.send({"do": "listen", "address": "127.0.0.1", "nic": None})
            answer = call.receive()
            addresses[node] = (answer["address"], answer["port"])
        plans = relay_plan.words(addresses, length)
        for node, call in enumerate((first, second)):
            call.send({"do": "relay", "relay": plans[node], "lock": lock})
        first.send({"stream": True})
        yield first, second


def blob(wheel: Wheel, data: bytes) -> bytes:
    return HEADER.pack(bytes.fromhex(wheel.digest), wheel.size) + data


def test_relayed_wheels_are_accepted_if_they_are_intact_and_were_requested(tmp_path: Path) -> None:
    store, lock = store_of(tmp_path / "store", tiny(tmp_path), make_wheel(tmp_path, "more", "2", {"more.py": ""}))
    right = store.path(lock[0]).read_bytes()
    stranger = lock[0]._replace(digest="0" * 64)
    stream = blob(stranger, right) + blob(lock[0], right) + blob(lock[1], bytes(lock[1].size))
    stream += HEADER.pack(bytes(32), END)
    with chained(tmp_path, lock, len(stream)) as nodes:
        nodes[0].write(stream)
        for call, home in zip(nodes, ("first", "second"), strict=True):
            assert call.receive() == {"missing": [1]}
            assert {path.name for path in (ours(tmp_path / home) / "wheels").iterdir()} == {lock[0].digest}
            send_files(call, lock[1:], store)
            call.send({"do": "build", "lock": lock})
            assert call.result()["built"]


def test_wheels_that_a_broken_relay_left_out_are_sent_directly(tmp_path: Path) -> None:
    store, lock = store_of(tmp_path / "store", tiny(tmp_path))
    data = store.path(lock[0]).read_bytes()
    with chained(tmp_path, lock, HEADER.size + 2 * len(data)) as (first, second):
        first.write(blob(lock[0], data)[:-1])
        first.close()
        missing, have = missing_of(second, lock, second.receive())
        assert (missing, list(have)) == (lock, [lock[0].digest])
        assert 0 < send_files(second, lock, store, have=have) < lock[0].size, "only the rest"
        second.send({"do": "build", "lock": lock})
        assert second.result()["built"]


def test_a_first_node_that_cannot_store_a_wheel_reports_why_and_passes_it_on(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nulimit -f 2000\nexec {sys.executable} "$@"\n')  # blocks of 512 bytes
    python.chmod(0o755)
    store, lock = store_of(tmp_path / "store", make_wheel(tmp_path, "large", "1", {"large.py": "#" * 3_000_000}))
    stream = blob(lock[0], store.path(lock[0]).read_bytes()) + HEADER.pack(bytes(32), END)
    with chained(tmp_path, lock, len(stream), str(python)) as (first, second):
        first.write(stream)
        assert second.receive() == {"missing": []}
        with pytest.raises(NodeError, match="File too large"):
            first.receive()


@pytest.mark.parametrize(
    ("files", "lie_about", "expected"),
    [
        ({"../../escaped.py": ""}, "", "would be outside the environment"),
        ({"/escaped.py": ""}, "", "would be outside the environment"),
        ({"tiny.py": "x = 1"}, "tiny.py", "does not match its RECORD"),
        ({"entry_points.txt": "[console_scripts]\n../x = a:b\n"}, "", "not an entry point"),
    ],
)
def test_an_invalid_wheel_does_not_create_an_environment(
    files: dict[str, str], lie_about: str, expected: str, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    store, lock = store_of(tmp_path / "store", make_wheel(tmp_path, "tiny", "1.0", files, lie_about=lie_about))
    with asked(home, REQUEST) as call, pytest.raises(NodeError, match=expected):
        install(call, lock, store)
    assert leftovers(home) == []
    assert not list(home.rglob("escaped.py"))
    assert {path.name for path in (ours(home) / "venvs").iterdir()} == {"lock"}


def test_packages_that_do_not_work_on_this_machine_do_not_create_an_environment(tmp_path: Path) -> None:
    home = tmp_path / "home"
    broken = make_wheel(tmp_path, "numpy", "9", {"numpy.py": "raise ImportError('needs another CPU')"})
    store, lock = store_of(tmp_path / "store", broken)
    with asked(home, REQUEST) as call, pytest.raises(NodeError, match="needs another CPU"):
        install(call, lock, store)
    with asked(home, REQUEST) as call:
        assert call.receive()["facts"]["environment"] is None
    assert leftovers(home) == []


def test_a_second_setup_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with asked(home, REQUEST) as first:
        first.receive()
        with pytest.raises(RefusedError, match=r"a setup .* is running on this node"), asked(home, REQUEST) as second:
            second.receive()
        first._process.popen.kill()  # type: ignore[attr-defined]
        first._process.popen.wait()  # type: ignore[attr-defined]
        with asked(home, REQUEST) as third:
            assert "facts" in third.receive()


def test_prune_and_setup_exclude_each_other(tmp_path: Path) -> None:
    home = tmp_path / "home"
    store, lock = store_of(tmp_path / "store", tiny(tmp_path))
    with asked(home, REQUEST) as call:
        made = install(call, lock, store)["environment"]
    wanted = {"op": "prune", "remove": {"jobs": [], "content": [["environment", made], ["wheel", lock[0].digest]]}}
    with asked(home, {**REQUEST, "requirements": ["more"]}) as call:
        call.receive()
        kept = ask(home, wanted)["kept"]
        assert [(item["kind"], item["why"]) for item in kept] == [
            (kind, "a setup is running on this node") for kind in ("environment", "wheel")
        ]
        call.send({"do": "build", "lock": lock})
        assert call.result() == {"environment": made, "built": False, "builder": None, "problem": None}
    with EnvironmentsLock(home / "root", "prune", 0) as holder:
        assert holder is None
        with pytest.raises(RefusedError, match=rf"a prune \(pid {os.getpid()}\) is running on this node"):
            ask(home, REQUEST)
    assert ask(home, wanted)["kept"] == []
    assert not (ours(home) / "venvs" / made).exists()


@pytest.mark.parametrize("damaged", [False, True])
def test_the_next_setup_sends_only_the_rest_of_a_wheel(damaged: bool, tmp_path: Path) -> None:
    home, half = tmp_path / "home", 200_000
    store, lock = store_of(tmp_path / "store", make_wheel(tmp_path, "large", "1", {"large.py": "#" * 2 * half}))
    data = store.path(lock[0]).read_bytes()
    ask(home, {"op": "jobs"})
    (ours(home) / "wheels").mkdir()
    (ours(home) / f"wheels/.{lock[0].digest}.part").write_bytes(bytes(half) if damaged else data[:half])
    with asked(home, REQUEST) as call:
        call.receive()
        call.send({"do": "offer", "lock": lock, "online": False, "options": []})
        missing, have = missing_of(call, lock, call.receive())
        assert have == {lock[0].digest: half}
        sent = send_files(call, missing, store, have=have)
        assert sent == len(data) - half + damaged * len(data), "a wheel with wrong bytes is sent once more"
        call.send({"do": "build", "lock": lock})
        assert call.result()["built"]
    assert leftovers(home) == []


def test_the_next_setup_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    home = tmp_path / "home"
    store, lock = store_of(tmp_path / "store", tiny(tmp_path))
    with asked(home, REQUEST) as call:
        call.receive()
        call.send({"do": "take", "lock": [lock[0]._replace(size=10**9)]})
        call.write(b"x" * (1 << 22))  # more than the pipe holds: it is still being written when all of this is gone
        assert leftovers(home) != []
        call._process.popen.kill()  # type: ignore[attr-defined]
        call._process.popen.wait()  # type: ignore[attr-defined]
    assert leftovers(home) != []
    with asked(home, REQUEST) as call:
        install(call, lock, store)
    assert leftovers(home) == []


def test_pip_on_the_node_is_killed_when_the_control_machine_disconnects(tmp_path: Path) -> None:
    """It is waiting for a package index that never answers."""
    home = tmp_path / "home"
    with socket.create_server(("127.0.0.1", 0)) as never:
        index = f"http://127.0.0.1:{never.getsockname()[1]}/"
        with asked(home, REQUEST) as call:
            assert call.receive()["facts"]["pip"]
            call.send({"do": "resolve", "requirements": [f"--index-url {index}", "tiny"]})
            never.accept()[0].detach()
            assert len(processes_with_environment("HOME", str(home))) >= 2
    assert_none_left("HOME", str(home))
    assert leftovers(home) == []


@pytest.mark.slow
def test_uv_provides_pip_to_a_python_that_has_none(tmp_path: Path) -> None:
    home, index = tmp_path / "home", tmp_path / "index"
    wheel = describe(tiny(index))
    python = str(bare_python(tmp_path / "bare", sys.executable))
    with asked(home, REQUEST, python=python) as call:
        assert call.receive()["facts"]["pip"] is None
    lend_pip(home / ".local/bin/uv", sys.executable, index)
    options = ["--no-index", f"--find-links={index}"]
    with asked(home, REQUEST, python=python) as call:
        assert call.receive()["facts"]["pip"] == "uv"
        call.send({"do": "resolve", "requirements": [*options, "tiny"]})
        assert call.receive() == {"lock": [list(wheel)]}
    shutil.rmtree(ours(home) / "wheels")
    with asked(home, REQUEST, python=python) as call:
        call.receive()
        call.send({"do": "offer", "lock": [wheel], "online": True, "options": options})
        assert call.receive() == {"missing": []}
        call.send({"do": "resolve", "requirements": ["tiny"]})
        assert call.receive() == {"failed": "exit code 9"}


@pytest.mark.slow
def test_uv_provides_pip_to_the_control_machine_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tmp_path / "index"
    wheel = describe(tiny(index))
    platform = platform_of([facts()])
    requirements = ["--no-index", f"--find-links={index}", "tiny"]
    downloads = Downloads(tmp_path / "cache")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(NodeError, match="neither pip nor uv on this machine"):
        downloads.resolve(requirements, platform, cached=False)
    lend_pip(tmp_path / "bin/uv", sys.executable, index)
    assert downloads.resolve(requirements, platform, cached=False) == [wheel]


def test_uv_gets_package_locations_but_not_on_its_command_line() -> None:
    lines = ["--index-url https://me:word@one/?a=b", "numpy", "--extra-index-url=two --find-links a", "--find-links b"]
    assert uv_variables(lines) == {
        "UV_DEFAULT_INDEX": "https://me:word@one/?a=b",
        "UV_INDEX": "two",
        "UV_FIND_LINKS": "a,b",
    }


def test_a_lock_that_names_more_than_wheels_is_refused(tmp_path: Path) -> None:
    with asked(tmp_path / "home", REQUEST) as call:
        call.receive()
        call.send({"do": "offer", "lock": [["../a-1-py3-none-any.whl", "0" * 64, 1]], "online": False, "options": []})
        with pytest.raises(RefusedError, match="must be the name of a wheel"):
            call.receive()


# Pure functions.


def test_requirements_are_read_without_comments_and_with_continued_lines() -> None:
    text = "# c\n\nnumpy>=1.2 # why\nfoo \\\n  ==1 \\\n  --hash=sha256:0\n--index-url x\n"
    assert logical_lines(text) == [(3, "numpy>=1.2"), (4, "foo ==1 --hash=sha256:0"), (7, "--index-url x")]


def test_requirements_of_the_runtime_are_added_if_it_is_used() -> None:
    assert effective("NumPy<2\n", runtime=True) == ["NumPy<2", "pyzmq", "cryptography"]
    assert effective("NumPy<2\n", runtime=False) == ["NumPy<2"]
    assert effective(None, runtime=False) == ["numpy", "pyzmq", "cryptography"]


def test_a_run_uses_the_environment_in_place_of_the_interpreter_setting() -> None:
    names = {"role": "trainer", "rank": 0, "index": 0}
    spec = make_spec(processes=[{**names, "argv": ["python3", "a.py"]}, {**names, "argv": ["sh", "x"]}])
    assert in_environment(spec, None, "python3") is spec
    inside = in_environment(spec, Path("/v"), "python3")
    assert inside.venv == "/v"
    assert [process.argv for process in inside.processes] == [("/v/bin/python", "a.py"), ("sh", "x")]


def test_a_path_too_long_for_the_kernel_is_run_by_the_shell(tmp_path: Path) -> None:
    directory = tmp_path / ("a $b `c` " + "x" * 130)
    directory.mkdir()
    (directory / "python").symlink_to(sys.executable)
    script = directory / "script"
    script.write_bytes(shebang(str(directory / "python")) + b"import sys; print(sys.argv[1:])\n")
    script.chmod(0o755)
    assert subprocess.run([script, "1 2"], capture_output=True, text=True, check=True).stdout == "['1 2']\n"
    assert shebang("/p") == b"#!/p\n"


def test_nodes_of_the_same_kind_get_wheels_that_the_oldest_of_them_can_load() -> None:
    facts = {"implementation": "cp", "python": "3.11.2", "machine": "x86_64", "glibc": [2, 36], "pip": True}
    old = {**facts, "glibc": [2, 17]}
    assert kind_of(facts) == kind_of(old)
    assert str(kind_of(facts)) == "python 3.11 x86_64"
    tags = platform_of([facts, old]).tags()
    assert tags[:2] == ["manylinux_2_17_x86_64", "manylinux2014_x86_64"]
    assert tags[-1] == "linux_x86_64"
    musl = platform_of([{**facts, "glibc": None}])
    assert musl.kind != kind_of(facts)
    assert musl.tags()[0] == "musllinux_1_2_x86_64"


@pytest.mark.parametrize(
    ("output", "kind", "expected"),
    [
        ("ERROR: x\nERROR: No matching distribution found for foo==9\n", "config", "foo==9"),
        ("WARNING: Retrying: Temporary failure in name resolution\nERROR: No matching", "node", "could not reach"),
        ("ERROR: Could not install: [Errno 28] No space left on device\n", "node", "no space"),
        ("error: Failed to fetch: `https://x/`\n  Caused by: dns error", "node", "could not reach"),
        ("error: Failed to fetch: `https://x/`\n  Caused by: invalid peer certificate: Unknown", "node", "not trust"),
        ("", "config", "no output"),
    ],
)
def test_errors_of_pip_are_explained(output: str, kind: str, expected: str) -> None:
    error = explain(output, "on node0")
    assert (error.kind, expected in error.message) == (kind, True)


class Giving:
    """A node's agent that sends bytes, or disconnects if there are none."""

    def __init__(self, node: Node, data: bytes | None) -> None:
        self.node = node
        self.data = io.BytesIO(data or b"")
        self.is_gone = data is None

    def send(self, message: dict[str, Any]) -> None:
        if self.is_gone:
            raise NodeError("the connection broke", node=self.node.label)

    def read(self, count: int) -> bytes:
        return self.data.read(count)


def test_a_node_that_disconnects_while_sending_wheels_does_not_affect_others(tmp_path: Path) -> None:
    wheel = describe(tiny(tmp_path))
    cluster = PipeCluster(tmp_path, sys.executable, nodes=3)
    work = nodes._Setup(
        cluster, Requirements("", ("tiny",)), nodes.SetupOptions(), print, Downloads(tmp_path / "cache")
    )
    work._facts = {node.id: {"lock": None} for node in cluster.nodes}
    work._missing = {0: [], 1: [], 2: [wheel]}
    given = {0: None, 1: (tmp_path / wheel.file).read_bytes(), 2: b""}
    work.calls = {node.id: Giving(node, given[node.id]) for node in cluster.nodes}  # type: ignore[misc]
    work._gather(NodeGroup(platform_of([facts()]), list(cluster.nodes), [wheel]))
    assert [(id_, error.node) for id_, error in work._errors.items()] == [(0, "node0")]
    assert work._downloads.store.has(wheel)


def test_the_names_of_required_projects_are_known_unless_they_are_in_other_places() -> None:
    lines = [
        "numpy",
        "Foo_Bar[x] >= 1 ; python_version < '4'",
        "--index-url x",
        "baz @ https://h/baz.whl",
        "a.b==1 --x",
    ]
    assert project_names("\n".join(lines)) == ["numpy", "foo-bar", "baz", "a-b"]
    assert project_names("# nothing\n") == []
    for line in ("-r other.txt", "--requirement other.txt", "-e .", "./here", "https://h/x.whl", "git+https://h/x"):
        assert project_names(f"numpy\n{line}\n") is None


def test_an_environment_of_an_older_version_is_used_for_the_same_requirements(tmp_path: Path) -> None:
    root, job = tmp_path / "root", tmp_path / "job"
    job.mkdir()
    (job / "requirements.txt").write_text("numpy\n")
    place = Venvs(root)
    place.python("old").parent.mkdir(parents=True)
    place.python("old").touch()
    write_json(place.path("old") / "clusterctl.json", {"lock": []})
    assert find_for_job(root, job, runtime=True) is None
    (place.directory / "for").mkdir()
    place.point(["numpy", "pyzmq"], "old")
    assert find_for_job(root, job, runtime=True) == place.path("old")
    (job / "requirements.txt").write_text("numpy\npyzmq\ncryptography\n")
    assert find_for_job(root, job, runtime=True) is None
