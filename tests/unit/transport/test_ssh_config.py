"""Our parser of ssh_config agrees with `ssh -G`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from clusterctl.errors import ConfigError
from clusterctl.transport.ssh_config import OnlySshKnowsError, SshConfig, local_user
from clusterctl.transport.target import Resolver, Target
from support.nodes import TestNode, TestSettings

COMPARED = (
    "hostname", "user", "port", "identityfile", "proxyjump", "proxycommand", "userknownhostsfile", "hostkeyalias",
    "identitiesonly", "serveraliveinterval", "serveralivecountmax",
)  # fmt: skip
DEFAULTS = {
    "identitiesonly": ["no"],
    "serveraliveinterval": ["0"],
    "serveralivecountmax": ["3"],
    "port": ["22"],
    "user": [local_user()],
}
CONFIGS = {
    "empty": "",
    "one host": "Host alpha\n HostName 10.0.0.1\n Port 2201\n User ann\n",
    "first wins": "Host al*\n User ann\nHost alpha\n User bob\n Port 5\nHost *\n Port 6\n",
    "negation": "Host * !alpha\n User ann\nHost *\n User bob\n",
    "only negation": "Host !beta\n User ann\n",
    "several patterns": "Host beta alph?  gamma\n User ann\n",
    "equals and case": "hOsT=alpha\n HOSTNAME = 10.0.0.2\n\tpOrT=7\n",
    "quotes": 'Host "alpha"\n User "ann"\n IdentityFile "/tmp/a key"\n',
    "comments": "# Host alpha\nHost alpha # beta\n# User bob\n User ann # bob\n Port 7 #8\n",
    "identities add up": "Host alpha\n IdentityFile /k/one\nHost *\n IdentityFile /k/two\n IdentitiesOnly yes\n",
    "jump": "Host alpha\n ProxyJump ann@gate:2200,second\n",
    "jump before command": "Host alpha\n ProxyJump gate\n ProxyCommand nc %h %p\n",
    "command": "Host alpha\n ProxyCommand nc -x proxy %h %p\n",
    "alive": "Host alpha\n ServerAliveInterval 7\n ServerAliveCountMax 2\n",
    "known hosts": "Host alpha\n UserKnownHostsFile /k/a /k/b\n HostKeyAlias stable\n",
    "before any host": "User ann\nHost beta\n User bob\n",
    "match all": "Host alpha\n Port 5\nMatch all\n User ann\n",
    "match host": "Host alpha\n HostName deep.org\nMatch host deep.*,other\n User ann\nMatch host alpha\n Port 9\n",
    "match original": "Host alpha\n HostName deep.example.org\nMatch originalhost alpha\n User ann\n",
    "match user": "Host alpha\n User ann\nMatch user ann host alpha\n Port 9\nMatch user bob\n Port 8\n",
    "match negated": "Match !host beta\n User ann\nMatch !host alpha\n Port 8\n",
    "match local user": f"Match localuser {local_user()}\n User ann\nMatch localuser nobody-else\n Port 8\n",
    "host name token": "Host alpha\n HostName %h.example.org\n",
    "windows line ends": "Host alpha\r\n Port 2201\r\n",
    "include": "Host beta\n Include {directory}/more/*.conf\nHost alpha\n Include {directory}/more/*.conf\n Port 12\n",
}


@pytest.fixture(scope="module")
def ssh() -> None:
    if shutil.which("ssh") is None:
        pytest.skip("needs ssh (apt-get install openssh-client)")


def config(tmp_path: Path, text: str) -> SshConfig:
    (tmp_path / "more").mkdir()
    (tmp_path / "more/a.conf").write_text("User carol\nHost gamma\n User dave\n")
    (tmp_path / "more/b.conf").write_text("Host alpha\n HostName 10.0.0.7\n")
    path = tmp_path / "ssh_config"
    path.write_text(text.replace("{directory}", str(tmp_path)))
    return SshConfig(path)


@pytest.mark.usefixtures("ssh")
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("given", [(None, None), ("zoe", 4000)])
def test_our_parser_agrees_with_ssh(tmp_path: Path, name: str, given: tuple[str | None, int | None]) -> None:
    read = config(tmp_path, CONFIGS[name])
    ours, expected = read.read("alpha", *given), read.ask_ssh("alpha", *given, "the test")
    ours.setdefault("hostname", ["alpha"])
    ours.setdefault("userknownhostsfile", expected["userknownhostsfile"])  # ssh expands the ~ of the default
    ours["hostname"] = [ours["hostname"][0].replace("%h", "alpha")]
    jump = next((key for key in ours if key in ("proxyjump", "proxycommand")), None)
    differ = {}
    for key in COMPARED:
        if key in ("proxyjump", "proxycommand") and key != jump:
            continue  # ssh shows only the effective one
        if (actual := ours.get(key, DEFAULTS.get(key))) != expected.get(key, DEFAULTS.get(key)):
            differ[key] = (actual, expected.get(key))
    assert not differ


@pytest.mark.usefixtures("ssh")
def test_ssh_is_run_for_what_only_ssh_can_evaluate(tmp_path: Path) -> None:
    text = 'Match host alpha exec "test %h = alpha"\n User ann\nMatch exec false\n Port 9\nHost alpha\n Port 8\n'
    read = config(tmp_path, text)
    with pytest.raises(OnlySshKnowsError, match="Match exec"):
        read.read("alpha", None, None)
    options = read.lookup("alpha", None, None)
    assert (options["user"], options["port"]) == (["ann"], ["8"])
    assert "identityfile" not in options, "none is set: ours are the default"


def test_ssh_is_not_run_for_an_unaffected_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SshConfig, "ask_ssh", None)
    read = config(tmp_path, 'Match host beta exec "true"\n User ann\nHost alpha\n Port 8\n')
    assert read.lookup("alpha", None, None) == {"port": ["8"]}


def test_without_the_ssh_program_the_option_that_needs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="Match exec in ssh_config needs the ssh program"):
        config(tmp_path, "Match exec true\n User ann\n").lookup("alpha", None, None)


@pytest.mark.usefixtures("ssh")
def test_a_config_that_ssh_rejects_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ssh rejected its configuration for alpha"):
        config(tmp_path, "Match exec true\n Port many\n").lookup("alpha", None, None)


def target(tmp_path: Path, text: str) -> Target:
    path = tmp_path / "ssh_config"
    path.write_text(text)
    return Resolver(TestSettings(path, None, None)).resolve(TestNode("node0", None, ssh_host="alpha"))


def test_tokens_are_expanded_as_by_ssh(tmp_path: Path) -> None:
    text = (
        "Host alpha\n HostName %h.org\n User ann\n Port 7\n IdentityFile %d/k/%n-%h-%p-%r-%%\n ProxyCommand nc %h %p\n"
    )
    made = target(tmp_path, text)
    assert made.host == "alpha.org"
    assert made.identities == (Path(f"{Path.home()}/k/alpha-alpha.org-7-ann-%"),)
    assert made.proxy_command == "nc alpha.org 7"
    with pytest.raises(ConfigError, match="%q"):
        target(tmp_path, "ProxyCommand nc %q\n")


def test_the_keepalive_of_ssh_config_is_used_and_never_off(tmp_path: Path) -> None:
    assert target(tmp_path, "ServerAliveInterval 7\nServerAliveCountMax 2\n").alive == (7.0, 2)
    assert target(tmp_path, "ServerAliveInterval 0\n").alive == (10.0, 3)
    with pytest.raises(ConfigError, match="ServerAlive"):
        target(tmp_path, "ServerAliveInterval soon\n")


def test_an_unclosed_quote_is_reported_with_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ssh_config:2: No closing quotation"):
        target(tmp_path, 'User ann\nHost "alpha\n')
