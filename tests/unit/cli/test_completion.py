"""Candidates for Tab: from the program, called as typer's scripts call it, and in real shells on a terminal."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterctl.cli import answer_shell
from clusterctl.cli.completion import ASKS
from clusterctl.cli.seen import VERSION, SeenFile
from support.terminal import Terminal

JOB, OLDER = "JOB20261125-153906", "JOB20261124-120000"
#: Names that mean something to a shell, or to the scripts that evaluate what they get.
HOSTILE = (
    *("t1 $(touch pwned)", "t2`touch pwned`", "t3;touch pwned", "t4\\$(touch pwned)", "t5\\", 't6");touch pwned;("'),
    *("t7'&touch pwned'", "t8|touch pwned", "t9*", "~root", "=ls"),
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home with a conf.py that must not run, and a cache with names of all kinds."""
    home = tmp_path_factory.mktemp("home")
    (home / "conf.py").write_text("raise SystemExit('executed')")
    (home / "my space").mkdir()
    nodes = [
        {"label": "node0", "host": "10.0.0.0", "name": "head", "tags": ["big", *HOSTILE]},
        {"label": "node1", "host": "10.0.0.1", "name": "", "tags": ["big"]},
        {"label": "node2", "host": "10.0.0.2", "name": "", "tags": []},
    ]
    hostile = {str(number): name for number, name in enumerate(HOSTILE, 10)}
    jobs = {
        OLDER: {"state": "failed", "runs": {"1": "first"}, "tags": ["pass-00000"]},
        JOB: {"state": "running", "runs": {"1": "first", "2": "lr-0.1"}, "tags": ["best", *HOSTILE]},
        "JOB20261123-120000": {"state": HOSTILE[4], "runs": hostile, "tags": []},
    }
    cache = SeenFile(home / ".cache/clusterctl", home / "conf.py").path
    cache.parent.mkdir(parents=True)
    about = {"v": VERSION, "conf": str((home / "conf.py").resolve()), "nodes": nodes, "jobs": jobs}
    cache.write_text(json.dumps(about))
    return home


@pytest.fixture
def offered(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Return a function that asks as the script of a shell does, given its variables."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setitem(sys.modules, "rich", sys.modules.get("rich"))  # restored afterwards
    for name in ("XDG_CACHE_HOME", "CLUSTERCTL_CONF", "COMP_WORDS", "COMP_CWORD"):
        monkeypatch.delenv(name, raising=False)

    def ask(**variables: str) -> list[str]:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        answer_shell()
        out, err = capsys.readouterr()
        assert err == ""
        return [line.partition("\t")[0] for line in out.splitlines()]

    return ask


FISH = {ASKS: "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
OLDEST = "JOB20261123-120000"


@pytest.mark.parametrize(
    ("line", "candidates"),
    [
        ("sta", "start status"),
        ("fake h", "heal"),
        ("--conf conf.py --json sto", "stop"),
        ("logs --ro", "--role"),
        ("logs --role ", "pserver trainer scheduler"),
        ("logs -fn5 --t", ""),  # -n is --tail
        ("logs --on", "--only"),  # global options may follow the command
        ("logs --install", ""),
        ("start --job-w", "--job-workspace"),
        ("start --set A=1 --se", "--set"),
        ("start --resume --res", "--resume-from"),
        ("start workspace --lr=0.1 --na", "--name"),
        ("start --engine t", "torch tensorflow"),
        ("start --set ON_NA", "ON_NAN=warn ON_NAN=fail ON_NAN=skip"),
        ("start --set KEEP_", "KEEP_MODELS= KEEP_BEST="),
        ("start --set RELAY=", "RELAY=auto RELAY=always RELAY=never"),
        ("start --set REPORT=", "REPORT=True REPORT=False"),
        ("start --set HOS", ""),
        ("exec --no", "--no-fold"),
        ("init --template ", "ngram ctr torch"),
        ("demo --backend ", "embedded ssh docker"),
        ("export out --to ", "tensorboard trace csv prometheus"),
        ("submit --to ", "slurm kubernetes"),
        ("completion ", "bash zsh fish powershell"),
        ("status --bogus --wat", "--watch"),
        ("status ", f"{JOB} {OLDER} {OLDEST} lr-0.1 first"),
        ("stop l", "lr-0.1"),
        (f"status {JOB}/", f"{JOB}/1 {JOB}/2"),
        (f"stop {JOB}/", ""),
        (f"status {JOB} --wa", "--watch"),
        (f"why {JOB} ", "--help --conf --only --json --quiet --verbose --version"),
        ("start --load JOB20261124", OLDER),
        (f"start --load {OLDER} --load-tag ", "pass-00000"),
        ("start --load lr-0.1 --load-run ", "1 2"),
        ("start --name ", "lr-0.1 first"),
        (f"diff {JOB} f", "first"),
        ("collect --tag ", "best pass-00000"),
        (f"collect {OLDER} --run ", "1"),
        ("--only ", "big node0 node1 node2 head 10.0.0.0 10.0.0.1 10.0.0.2 failed@last"),
        ("status --only h", "head"),
        ("--only node0,f", "node0,failed@last"),
        ("logs --node node0,node", "node0,node1 node0,node2"),
        ("fake kill ", "node0 node1 node2"),
        ("--conf elsewhere.py status ", ""),
        ("status --conf elsewhere.py ", ""),
        ("exec -- ls ", ""),
        ("start workspace -- --na", ""),
        ("dispatch ", ""),  # a shell offers files where there is nothing else
    ],
)
def test_a_line_is_completed(offered: Callable[..., list[str]], line: str, candidates: str) -> None:
    assert offered(**FISH, _TYPER_COMPLETE_ARGS=f"clusterctl {line}") == candidates.split()


@pytest.mark.parametrize(
    ("words", "candidates"),
    [
        ("logs --role = t", "trainer"),
        ("start --set ON_NAN = s", "skip"),
        ("start --set REPORT =", "True False"),
        ("start --set A = 1 --set ON_NAN =", "warn fail skip"),
    ],
)
def test_bash_divides_words_at_equals_signs(offered: Callable[..., list[str]], words: str, candidates: str) -> None:
    typed = "\n".join(["clusterctl", *words.split()])
    asked = {ASKS: "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count("\n"))}
    assert offered(**asked) == candidates.split()


def test_a_damaged_installation_offers_nothing(
    offered: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SeenFile, "read", lambda self: 1 / 0)
    assert offered(**FISH, _TYPER_COMPLETE_ARGS="clusterctl status ") == []


@pytest.mark.parametrize("asks", ["bash", "zsh", "fish", "complete_tcsh"])
def test_scripts_of_older_versions_and_of_unknown_shells_get_nothing(asks: str, tmp_path: Path) -> None:
    env = {**environment(tmp_path), ASKS: asks, "_CLUSTERCTL_LINE": "clusterctl sta", "_CLUSTERCTL_WORD": "sta"}
    done = subprocess.run(["clusterctl"], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("", "")
    assert done.returncode == (1 if "_" in asks else 0)


def test_an_answer_imports_no_transport(home: Path) -> None:
    code = (
        "import os, sys\nos._exit = lambda code: print('LOADED', *sys.modules)\n"
        "import clusterctl.cli\nclusterctl.cli.main()"
    )
    env = {**environment(home), **FISH, "_TYPER_COMPLETE_ARGS": "clusterctl status "}
    done = subprocess.run([sys.executable, "-c", code], cwd=home, env=env, capture_output=True, text=True, check=True)
    answer, _, loaded = done.stdout.partition("LOADED")
    assert answer.splitlines()[0] == f"{JOB}\tlr-0.1, running"
    assert not {"paramiko", "rich.text", "clusterctl.transport", "clusterctl.cli.app"} & set(loaded.split())


# The scripts in real shells

START = {
    "bash": ("bash", "--norc", "--noprofile", "-i"),
    "zsh": ("zsh", "-f", "-i"),
    "fish": ("fish", "--no-config", "-i"),
}
#: A function that shows its arguments, in place of the program.
SHOW = {
    "bash": "show() { printf 'GO''T<'; printf '%s|' \"$@\"; echo 'EN''D>'; }",
    "zsh": "show() { printf 'GO''T<'; printf '%s|' \"$@\"; echo 'EN''D>'; }",
    "fish": "function show; printf 'GO''T<'; printf '%s|' $argv; echo 'EN''D>'; end",
}
LOAD = {
    "bash": 'eval "$(clusterctl completion bash)"',
    "zsh": 'autoload -Uz compinit; compinit -u -D; eval "$(clusterctl completion zsh)"',
    "fish": "clusterctl completion fish | source",
}
INSTALLED = {
    "bash": ".bash_completions/clusterctl.sh",
    "zsh": ".zfunc/_clusterctl",
    "fish": ".config/fish/completions/clusterctl.fish",
}


def environment(home: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    return {"HOME": str(home), "PATH": path, "LC_ALL": "C.UTF-8", "XDG_CACHE_HOME": "", "CLUSTERCTL_CONF": ""}


@pytest.fixture(params=["bash", *(pytest.param(one, marks=pytest.mark.slow) for one in START if one != "bash")])
def shell_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if shutil.which(name) is None:
        pytest.skip(f"no {name} on this machine: apt-get install {name}")
    return name


@pytest.fixture
def gets(shell_name: str, home: Path) -> Iterator[Callable[[str], list[str]]]:
    """Return a function that types keys after `clusterctl `, and returns the arguments that the program would get."""
    with Terminal(START[shell_name], environment(home), columns=300) as terminal:
        terminal.press(f"cd {home}; {LOAD[shell_name]}; {SHOW[shell_name]}; show ready\n")
        terminal.expect("GOT<ready|END>", 60)

        def gets(typed: str) -> list[str]:
            terminal.press(f"clusterctl {typed}\x01show \n")
            return terminal.expect("END>", 60).rpartition("GOT<clusterctl|")[2].removesuffix("|END>").split("|")

        yield gets


@pytest.mark.slow
def test_a_shell_inserts_what_is_offered_and_runs_nothing_of_it(
    shell_name: str, home: Path, gets: Callable[[str], list[str]]
) -> None:
    assert gets("sto\t") == ["stop"]
    assert gets(f"status {JOB[:-3]}\t") == ["status", JOB]
    assert gets("status lr\t --wat\t") == ["status", "lr-0.1", "--watch"]
    assert gets("--only he\t") == ["--only", "head"]
    assert gets("logs --role tr\t") == ["logs", "--role", "trainer"]
    assert gets("start --set ON_NA\tsk\t" if shell_name != "zsh" else "start --set ON_NAN=sk\t")[-1] == "ON_NAN=skip"
    assert gets("dispatch my\t")[-1].rstrip("/") == "my space"
    for number in range(1, 10):
        assert gets(f"--only t{number}\t") == ["--only", f"t{number}"]
    for words in ("--only ", "status ", f"status {OLDEST}/", "start --set ", "start --"):  # lists of all candidates
        assert gets(f"{words}\t\x15clusterctl ready") == ["ready"]
    assert not (home / "pwned").exists()


def test_the_options_of_typer_install_and_show_the_same_scripts(shell_name: str, tmp_path: Path) -> None:
    env = {**os.environ, **environment(tmp_path)}
    shown = [
        subprocess.run([shell_name, "-c", command], env=env, capture_output=True, text=True, check=True).stdout.strip()
        for command in (
            *("clusterctl --install-completion; true", "clusterctl --show-completion; true"),
            f"clusterctl completion {shell_name}",
        )
    ]
    assert shown[1] == shown[2] == (tmp_path / INSTALLED[shell_name]).read_text().strip()


def test_a_shell_without_a_script_is_a_usage_error(tmp_path: Path) -> None:
    command = ["clusterctl", "completion", "tcsh"]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "use one of bash, zsh, fish, powershell" in done.stderr
