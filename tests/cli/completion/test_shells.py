"""The scripts in real shells on a terminal: what Tab inserts, what the program then gets, and that nothing runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.completion.caches import HOSTILE, JOB, NO_NAMES, Cache, job, node
from clusterctl.cli.completion.scripts import SCRIPTS
from support.terminal import Terminal

START = {
    "bash": ("bash", "--norc", "--noprofile", "-i"),
    "zsh": ("zsh", "-f", "-i"),
    "fish": ("fish", "--no-config", "-i"),
}
#: A function that shows its arguments, in place of the program: typed words and completed ones.
SHOW_ARGUMENTS = {
    "bash": "args() { printf 'GO''T<'; printf '%s|' \"$@\"; echo 'EN''D'; }; complete -o default -F _clusterctl args",
    "zsh": "args() { printf 'GO''T<'; printf '%s|' \"$@\"; echo 'EN''D'; }; compdef _clusterctl args",
    "fish": "function args; printf 'GO''T<'; printf '%s|' $argv; echo 'EN''D'; end; "
    "complete -c args -f -k -a '(__clusterctl_complete)'",
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
    return {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}


class Shell:
    """A shell with our script, in the directory `home` of a cache."""

    def __init__(self, name: str, cache: Cache) -> None:
        self.home = cache.conf.parent
        self._terminal = Terminal(START[name], {**environment(self.home), **cache.environ}, columns=300)
        self._terminal.press(f"cd {self.home}; {LOAD[name]}; {SHOW_ARGUMENTS[name]}; args ready\n")
        self._terminal.expect("GOT<ready|END", 60)

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self._terminal.__exit__()

    def gets(self, typed: str) -> list[str]:
        """Type keys and Return; return the arguments that a program gets."""
        self._terminal.press(f"args {typed}\n")
        return self._terminal.expect("END", 60).rpartition("GOT<")[2].removesuffix("|END").split("|")


@pytest.fixture(params=SCRIPTS)
def shell_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if shutil.which(name) is None:
        pytest.skip(f"no {name} on this machine: apt-get install {name}")
    return name


@pytest.fixture
def shell(shell_name: str, tmp_path: Path) -> Iterator[Shell]:
    cache = Cache(tmp_path)
    names = {str(number): f"t{number:02d}{name}" for number, name in enumerate(HOSTILE, 1)}
    tags = [f"n{number:02d}{name}" for number, name in enumerate(HOSTILE, 1)]
    cache.write(
        [node(0, "head", *NO_NAMES), *(node(at, "", tag) for at, tag in enumerate(tags, 1))],
        {JOB: {**job("running", NO_NAMES), "runs": {**names, "1000": "plain"}}},
    )
    (tmp_path / "my space").mkdir()
    with Shell(shell_name, cache) as shell:
        yield shell


def test_names_arrive_as_they_are_and_no_shell_runs_what_is_in_them(shell: Shell) -> None:
    for number, name in enumerate(HOSTILE, 1):
        if "|" not in name:  # which separates what `gets` returns
            assert shell.gets(f"status t{number:02d}\t") == ["status", f"t{number:02d}{name}"]
    for number, name in enumerate(HOSTILE[:5], 1):
        assert shell.gets(f"--only=n{number:02d}\t") == [f"--only=n{number:02d}{name}"]
    assert shell.gets("status '$(touch pwned)' t04\t") == ["status", "$(touch pwned)", "t04"]
    assert shell.gets("status \t\x15args status") == ["status"]  # a list of all of them
    assert not (shell.home / "pwned").exists()


@pytest.mark.parametrize(
    ("typed", "gets"),
    [
        ("sto\t", ["stop"]),
        ("status JO\t", ["status", JOB]),
        ("status pl\t", ["status", "plain"]),
        ("--only he\t", ["--only", "head"]),
        ("logs --role tr\t", ["logs", "--role", "trainer"]),
        ("logs --role=tr\t", ["logs", "--role=trainer"]),
        ("start --set MODE=ss\t", ["start", "--set", "MODE=ssp(4)"]),
        ("start --set ON_NA\tsk\t", ["start", "--set", "ON_NAN=skip"]),
        ('status "JO\t', ["status", JOB]),
        ("dispatch my\t", ["dispatch", "my space/"]),
        ("start my\t", ["start", "my space/"]),
        ("--conf=conf\t status", ["--conf=conf.py", "status"]),
        ("status conf\t", ["status", "conf"]),
    ],
)
def test_words_are_completed(shell_words: Shell, typed: str, gets: list[str]) -> None:
    got = shell_words.gets(typed)
    assert [word.rstrip("/") for word in got] == [word.rstrip("/") for word in gets]  # zsh removes the slash at Return


@pytest.fixture(params=SCRIPTS, scope="module")
def shell_words(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    if shutil.which(request.param) is None:
        pytest.skip(f"no {request.param} on this machine: apt-get install {request.param}")
    cache = Cache(tmp_path_factory.mktemp("home"))
    cache.write([node(0, "head")], {JOB: job("running", (), _1="plain")})
    cache.conf.write_text("raise SystemExit('executed')")
    (cache.conf.parent / "my space").mkdir()
    with Shell(request.param, cache) as shell:
        yield shell


def test_the_options_of_typer_install_and_show_the_same_scripts(shell_name: str, tmp_path: Path) -> None:
    env = {**os.environ, **environment(tmp_path)}
    for option in ("--install-completion", "--show-completion"):
        command = [shell_name, "-c", f"clusterctl {option}; true"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == SCRIPTS[shell_name]
    assert (tmp_path / INSTALLED[shell_name]).read_text().strip() == SCRIPTS[shell_name]


def test_zsh_loads_the_script_from_its_fpath(tmp_path: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("no zsh on this machine: apt-get install zsh")
    (tmp_path / "_clusterctl").write_text(SCRIPTS["zsh"])
    setup = f"fpath=({tmp_path} $fpath); autoload -Uz compinit; compinit -u -D; echo set''up\n"
    with Terminal(START["zsh"], environment(tmp_path), columns=300) as terminal:
        terminal.press(setup)
        terminal.expect("setup", 60)
        terminal.press("clusterctl compl\tba\t\x01echo \n")
        terminal.expect("clusterctl completion bash\r\n", 60)


def test_a_shell_without_a_script_is_a_usage_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "clusterctl", "completion", "tcsh"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "use one of bash, zsh, fish" in done.stderr
