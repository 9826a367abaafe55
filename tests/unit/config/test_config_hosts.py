"""Entries of HOSTS: strings, Host values, and the list as a whole."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.config import Host, from_values, load
from clusterctl.config.endpoint import Endpoint, masked, parse_endpoint
from clusterctl.errors import ConfigError
from clusterctl.inventory import build

_LETTERS = st.characters(categories=("Ll", "Lu"), max_codepoint=0x17F)
_NAMES = st.text(st.one_of(_LETTERS, st.sampled_from("-._")), min_size=1, max_size=20).filter(
    lambda name: name[0] not in "-."
)
_HOSTS = st.one_of(
    _NAMES,
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.just("fe80::1%eth0"),
)
_USERS = st.one_of(
    st.none(),
    st.text(st.one_of(_LETTERS, st.sampled_from("-.@\\+")), min_size=1).filter(lambda u: u[0] != "-"),
)


@given(_USERS, _HOSTS, st.one_of(st.none(), st.integers(1, 65535)))
def test_every_formatted_endpoint_parses_back_to_itself(user: str | None, host: str, port: int | None) -> None:
    endpoint = Endpoint(user, host, port)
    assert parse_endpoint(str(endpoint)) == endpoint


@given(st.text())
def test_any_string_either_round_trips_or_is_refused_with_a_sentence(
    text: str,
) -> None:
    try:
        endpoint = parse_endpoint(text)
    except ValueError as exc:
        reason = str(exc)
    else:
        reason = "none, since it is right"
        assert parse_endpoint(str(endpoint)) == endpoint
        assert not endpoint.host.startswith("-")
        assert not (endpoint.user or "").startswith("-")
    assert reason


@pytest.mark.parametrize(
    ("text", "user", "host", "port"),
    [
        ("10.0.0.9", None, "10.0.0.9", None),
        ("root@10.0.0.9", "root", "10.0.0.9", None),
        ("gpu-1.lan:2222", None, "gpu-1.lan", 2222),
        ("root@host_1:22", "root", "host_1", 22),
        ("[fe80::1]", None, "fe80::1", None),
        ("me@[fe80::1%eth0]:2201", "me", "fe80::1%eth0", 2201),
        ("me@corp.example@host", "me@corp.example", "host", None),
    ],
)
def test_a_host_string_has_a_user_a_host_and_a_port(text: str, user: str | None, host: str, port: int | None) -> None:
    entry = Host(text)
    assert (entry.user, entry.hostname, entry.port) == (user, host, port)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("root@10.0.0.9:99999", "port must be 1 to 65535"),
        ("h:0", "port must be 1 to 65535"),
        ("h:", "port must be 1 to 65535"),
        ("h:ssh", "port must be 1 to 65535"),
        ("h:²", "port must be 1 to 65535"),
        ("h:-1", "port must be 1 to 65535"),
        ("[::1]:", None),
        ("", "must not be empty"),
        ("root@", "the host name is missing"),
        (":22", "the host name is missing"),
        ("@h", "the user name before @ is missing or malformed"),
        ("-oProxyCommand=x@h", "the user name before @ is missing or malformed"),
        ("-h", "'-h' is not a host name"),
        ("a b", "'a b' is not a host name"),
        ("a,b", "'a,b' is not a host name"),
        ("h\n", "must not contain control characters"),
        ("10.0.0.999", "10.0.0.999 is not an IPv4 address"),
        ("fe80::1", "an IPv6 address goes in brackets, such as [fe80::1]:22"),
        ("[fe80::1", "write an IPv6 address as [address]:port"),
        ("[fe80::1]x", "write an IPv6 address as [address]:port"),
        ("[host]:22", "'host' is not an IPv6 address"),
        ("ssh://root@h", "write user@host:port, without ://"),
        ("root:pw@h", "passwords are not accepted here; use a key (IDENTITY_FILE, ssh-agent)"),
    ],
)
def test_a_wrong_host_string_is_refused_with_the_reason(text: str, message: str | None) -> None:
    with pytest.raises(ConfigError) as raised:
        from_values({"HOSTS": [text]})
    if message:
        assert str(raised.value).endswith(f": {message}")
    with pytest.raises(ConfigError):
        _ = Host(text).port


def test_a_password_in_a_host_string_is_never_shown() -> None:
    for entry in ("root:s3cret@h", "root:s3@cret@h:22", Host("root:s3cret@h")):
        with pytest.raises(ConfigError, match="use a key") as raised:
            from_values({"HOSTS": [entry]})
        assert "s3" not in str(raised.value) + str(raised.value.details)
    with pytest.raises(ConfigError) as raised:
        _ = Host("root:s3cret@h").user
    assert "s3" not in str(raised.value)


@pytest.mark.parametrize("text", ["h:22", "u@h:22", "[fe80::1]:22", "u@[fe80::1]:22", "u@h"])
def test_masking_leaves_a_host_string_without_password_as_it_is(text: str) -> None:
    assert masked(text) == text


def test_a_host_without_arguments_runs_both_roles() -> None:
    host = Host("h")
    assert host.roles == ("pserver", "trainer")
    assert (host.name, host.pservers, host.trainers, host.tags, host.address) == (None, None, None, (), None)


def test_the_arguments_of_a_host_are_parsed_to_one_form() -> None:
    host = from_values(
        {
            "HOSTS": [
                Host(
                    "root@h:22",
                    name="big",
                    roles=["trainer", "pserver"],  # type: ignore[arg-type]
                    pservers=0,
                    trainers=2,
                    tags="gpu",  # type: ignore[arg-type]
                    env={"A": 1},  # type: ignore[dict-item]
                    address="[fd00::1]",
                    identity=Path("keys/id"),
                    root_dir="~/x/",
                )
            ]
        }
    ).hosts[0]
    assert host.roles == ("pserver", "trainer")
    assert (host.pservers, host.trainers, host.tags, host.env) == (0, 2, ("gpu",), {"A": "1"})
    assert host.address == str(ipaddress.ip_address("fd00::1"))
    assert host.identity == Path.cwd() / "keys/id"
    assert host.root_dir == "~/x"


@pytest.mark.parametrize(
    ("host", "message"),
    [
        (Host("h", roles=("worker",)), """roles = ('worker',): must be "pserver", "trainer" or both"""),
        (Host("h", roles=()), """roles = (): must be "pserver", "trainer" or both"""),
        (Host("h", pservers=-1), "pservers = -1: must be 0 or more"),
        (Host("h", trainers="2"), "trainers = '2': must be a whole number, without quotes"),  # type: ignore[arg-type]
        (Host("h", tags=("a b",)), "tags = ('a b',): must consist of letters, digits, dots, dashes and underscores"),
        (Host("h", tags=("node3",)), "tags = ('node3',): must not look like a node label, such as node0"),
        (Host("h", name="node0"), "name = 'node0': must not look like a node label, such as node0"),
        (Host("h", env={"A=B": "x"}), "env: 'A=B' is not a valid environment variable name"),
        (Host("h", address="10.0.0.1:22"), "address = '10.0.0.1:22': '10.0.0.1:22' is not an IPv6 address"),
        (Host("h", root_dir="data"), "root_dir = 'data': must be an absolute path or start with ~/"),
        (Host("h", spare=1), "spare = 1: must be True or False"),  # type: ignore[arg-type]
        (Host("h", spare=True, trainers=2), "a spare has no processes of its own; leave out trainers="),
        (Host(7), "must be a string"),  # type: ignore[arg-type]
        (7, 'must be a string "user@host:port" or a Host(...)'),
        (None, 'must be a string "user@host:port" or a Host(...)'),
    ],
)
def test_a_wrong_argument_of_a_host_is_named(host: object, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        from_values({"HOSTS": ["first", host]})
    assert str(raised.value).startswith("settings: HOSTS[1] ")
    assert str(raised.value).endswith(f": {message}")


def test_all_mistakes_of_one_host_are_found_together() -> None:
    with pytest.raises(ConfigError) as raised:
        from_values({"HOSTS": [Host("h:0", pservers=-1, root_dir="x")]})
    assert len(raised.value.details["findings"]) == 3


@pytest.mark.parametrize("value", ["root@h", {"h": 1}, 3, None, {"a", "b"}])
def test_hosts_must_be_a_list(value: object) -> None:
    with pytest.raises(ConfigError, match="HOSTS must be a list of hosts") as raised:
        from_values({"HOSTS": value})
    assert raised.value.hint is not None
    assert "HOSTS = [" in raised.value.hint


@pytest.mark.parametrize("values", [{}, {"HOSTS": []}])
def test_hosts_must_be_given_and_not_empty(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"HOSTS is missing|HOSTS is empty"):
        from_values(values)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("root@h", "root@h"),
        ("root@h", "root@H:22"),
        ("root@h", Host("root@h", root_dir="~/clusterctl")),
        (Host("h", name="a"), Host("g", name="a")),
        (Host("h", root_dir="/a/"), Host("h", root_dir="/a")),
    ],
)
def test_the_same_host_twice_is_an_error_that_names_the_first(first: object, second: object) -> None:
    with pytest.raises(ConfigError, match=r"HOSTS\[2\] .*: duplicates HOSTS\[1\]"):
        from_values({"HOSTS": ["x", first, second]})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("u@h", "v@h"),
        ("h:2201", "h:2202"),
        ("h", Host("h", root_dir="/elsewhere")),
        ("h", "user@h"),
    ],
)
def test_hosts_that_differ_in_user_port_or_root_dir_are_distinct(first: object, second: object) -> None:
    assert len(from_values({"HOSTS": [first, second]}).hosts) == 2


def test_hosts_are_hashable_and_hide_their_environment() -> None:
    host = Host("h", env={"TOKEN": "s3cret"}, tags=["a"])  # type: ignore[arg-type]
    assert hash(host) == hash(Host("h", env={}, tags=("a",)))
    assert host != Host("h", tags=("a",))
    assert "s3cret" not in repr(host)


# VIA and `{node}`.


def problem(**values: object) -> str:
    with pytest.raises(ConfigError) as raised:
        from_values(values)
    return str(raised.value)


def test_a_host_may_have_its_own_carrier() -> None:
    settings = from_values({"HOSTS": ["me@a:2222", Host("b", via="local"), Host("c", via=("run", "{host}"))]})
    assert [node.via for node in build(settings).nodes] == ["ssh", "local", ("run", "{host}")]
    assert [node.carrier for node in build(settings).nodes] == ["ssh", "local", "run"]


def test_a_bad_carrier_of_a_host_is_reported_there() -> None:
    message = problem(HOSTS=[Host("a", via="docker")])
    assert message.startswith("settings: HOSTS[0] 'a': via = 'docker': must be \"ssh\", \"local\", or a tuple of words")


@pytest.mark.parametrize(
    ("host", "parts"),
    [
        ("me@a", "a user needs"),
        ("a:2222", "a port needs"),
        ("me@a:22", "a user and a port need"),
        (Host("a", identity="k"), "identity needs"),
    ],
)
def test_parts_that_only_ssh_uses_are_refused_with_another_carrier(host: object, parts: str) -> None:
    message = problem(HOSTS=[host], VIA="local")
    assert f'{parts} VIA = "ssh", but this host is reached by local; leave it out' in message
    message = problem(HOSTS=[host], VIA=("docker", "exec", "-i", "{host}"))
    assert "is reached by docker; write it into the words of VIA" in message


def test_the_id_of_the_node_stands_in_its_root_directory() -> None:
    hosts = ["a", Host("a", root_dir="/data/{node}/x"), Host("b", root_dir="/fixed")]
    nodes = build(from_values({"HOSTS": hosts, "ROOT_DIR": "~/node{node}"})).nodes
    assert [node.root_dir for node in nodes] == ["~/node0", "/data/1/x", "/fixed"]


def test_one_host_may_be_several_nodes_with_directories_of_their_own() -> None:
    assert len(from_values({"HOSTS": ["a"] * 3, "ROOT_DIR": "/x/{node}"}).hosts) == 3
    assert "duplicates HOSTS[0]" in problem(HOSTS=["a"] * 2)


def test_nodes_of_this_machine_need_directories_of_their_own() -> None:
    message = problem(HOSTS=["a", "b"], VIA="local")
    assert message.endswith(
        'duplicates HOSTS[0], which is this machine too; write ROOT_DIR = "~/clusterctl/node{node}"'
    )


def test_nodes_of_this_machine_alone_use_its_loopback_address() -> None:
    def addresses(**values: object) -> list[str | None]:
        nodes = build(from_values({"VIA": "local", "ROOT_DIR": "/x/{node}", **values})).nodes
        return [node.address for node in nodes]

    assert addresses(HOSTS=["a", "b"]) == ["127.0.0.1", "127.0.0.1"]
    assert addresses(HOSTS=["a", "b"], NIC="eth0") == [None, None]
    assert addresses(HOSTS=["a", Host("b", via="ssh"), Host("c", address="10.0.0.1")]) == [None, None, "10.0.0.1"]


def test_a_program_with_a_slash_is_a_path_beside_conf_py(tmp_path: Path) -> None:
    (tmp_path / "conf.py").write_text('HOSTS = ["a"]\nVIA = ("./run", "{host}")\n')
    assert load(tmp_path / "conf.py", {}).via == (str(tmp_path / "run"), "{host}")
