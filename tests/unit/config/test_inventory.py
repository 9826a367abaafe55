"""Nodes, roles and ranks, and the ways to select nodes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.config import Host, from_values, load
from clusterctl.config.host_sources import SlurmHosts
from clusterctl.config.node_loss import reaction_to_loss
from clusterctl.errors import ConfigError, UsageError
from clusterctl.inventory import Inventory, Node, build, fold, nodeset, select


def inventory(*hosts: object, **values: object) -> Inventory:
    return build(from_values({"HOSTS": list(hosts), **values}, {"HOME": "/home/me"}))


def ranks(built: Inventory) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(node.pserver_ranks, node.trainer_ranks) for node in built.nodes]


def ids(nodes: tuple[Node, ...]) -> list[int]:
    return [node.id for node in nodes]


def problem(*hosts: object, **values: object) -> str:
    with pytest.raises(ConfigError) as raised:
        inventory(*hosts, **values)
    assert raised.value.exit_code == 2
    return str(raised.value)


def test_by_default_every_node_runs_one_pserver_and_one_trainer() -> None:
    built = inventory("a", "b", "c")
    assert ranks(built) == [((0,), (0,)), ((1,), (1,)), ((2,), (2,))]
    assert (built.pserver_count, built.trainer_count) == (3, 3)
    assert [node.label for node in built.nodes] == ["node0", "node1", "node2"]


def test_a_node_carries_what_ssh_needs_from_its_host_or_the_settings() -> None:
    own = Host(
        "me@h:2201",
        address="10.0.0.1",
        identity=Path("/keys/own"),
        root_dir="/data",
        env={"A": "2"},
        tags=("gpu",),
    )
    first, second = inventory(own, "other", ENV={"A": "1", "B": "1"}, IDENTITY_FILE="~/key").nodes
    assert (first.ssh_user, first.ssh_host, first.ssh_port) == ("me", "h", 2201)
    assert (first.address, first.identity, first.root_dir) == ("10.0.0.1", Path("/keys/own"), "/data")
    assert (first.env, first.tags, first.host) == ({"A": "2", "B": "1"}, ("gpu",), own)
    assert (second.ssh_user, second.ssh_host, second.ssh_port) == (None, "other", None)
    assert (second.address, second.identity, second.root_dir) == (
        None,
        Path("/home/me/key"),
        "~/clusterctl",
    )
    assert second.env == {"A": "1", "B": "1"}


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ("root@10.0.0.13", "10.0.0.13"),
        ("10.0.0.13:22", "10.0.0.13"),
        ("me@10.0.0.13:2201", "10.0.0.13:2201"),
        ("[fe80::1]", "fe80::1"),
        ("[fe80::1]:2201", "[fe80::1]:2201"),
    ],
)
def test_messages_name_the_host_and_its_port_unless_that_is_22(spec: str, where: str) -> None:
    assert inventory(spec).nodes[0].where == where


def test_nodes_are_hashable_and_hide_their_environment() -> None:
    node = inventory("h", ENV={"TOKEN": "s3cret"}).nodes[0]
    assert {node: 1}[node] == 1
    assert "s3cret" not in repr(node)
    assert dataclasses.asdict(node)["env"] == {"TOKEN": "s3cret"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"PSERVERS": 1}, [((0,), (0,)), ((), (1,)), ((), (2,))]),
        ({"TRAINERS": 2}, [((0,), (0,)), ((1,), (1,)), ((2,), ())]),
        ({"PSERVERS": ["c", "a"]}, [((0,), (0,)), ((), (1,)), ((1,), (2,))]),
        ({"PSERVERS": ["a"], "TRAINERS": ["b", "c"]}, [((0,), ()), ((), (0,)), ((), (1,))]),
        (
            {"PSERVERS_PER_NODE": 2, "TRAINERS_PER_NODE": 3, "TRAINERS": 1},
            [((0, 1), (0, 1, 2)), ((2, 3), ()), ((4, 5), ())],
        ),
        ({"PSERVERS": 0, "ENGINE": "none"}, [((), (0,)), ((), (1,)), ((), (2,))]),
    ],
)
def test_pservers_and_trainers_choose_nodes_and_ranks_ascend_with_the_node_id(
    values: dict[str, object], expected: list[object]
) -> None:
    assert ranks(inventory("a", "b", "c", **values)) == expected


def test_hosts_define_their_own_roles_and_counts() -> None:
    built = inventory(
        Host("a", roles=("trainer",)),
        Host("b", trainers=2),
        Host("c", pservers=0, trainers=1),
        Host("d", roles=("pserver",), pservers=2),
        TRAINERS_PER_NODE=3,
    )
    assert ranks(built) == [((), (0, 1, 2)), ((0,), (3, 4)), ((), (5,)), ((1, 2), ())]


def test_a_spare_has_no_processes_and_ranks_are_counted_without_it() -> None:
    hosts = ("a", Host("b", spare=True), "c")
    assert ranks(inventory(*hosts)) == [((0,), (0,)), ((), ()), ((1,), (1,))]
    assert 'HOSTS[1] is a spare, which needs ON_NODE_LOSS = "move"' in problem(*hosts, ON_NODE_LOSS="fail")
    named = problem(*hosts, TRAINERS=["a", "b"])
    assert "names 'b', whose Host(...) does not allow a trainer: it is a spare" in named


@pytest.mark.parametrize(
    ("values", "reaction"),
    [
        ({}, "move"),
        ({"ON_TRAINER_LOSS": "wait"}, "wait"),
        ({"ON_TRAINER_LOSS": "shrink"}, "fail"),
        ({"ON_TRAINER_LOSS": "wait", "ON_NODE_LOSS": "move"}, "move"),
        ({"PSERVERS": 0}, "fail"),
        ({"ENGINE": "torch"}, "fail"),
        ({"ENGINE": "torch", "ON_NODE_LOSS": "move"}, "move"),
        ({"PSERVER_COMMAND": ["serve"]}, "fail"),
        ({"HOSTS": ["a"]}, "fail"),
    ],
)
def test_processes_of_our_pservers_move_unless_a_setting_says_otherwise(values: dict[str, Any], reaction: str) -> None:
    assert build(from_values({"HOSTS": ["a", "b"], **values})).node_loss == reaction


def test_in_a_slurm_job_processes_move_from_three_nodes_on() -> None:
    settings = from_values({"HOSTS": SlurmHosts()})
    assert [reaction_to_loss(settings, nodes, has_pservers=True) for nodes in (1, 2, 3)] == ["fail", "fail", "move"]


def test_a_number_selects_the_first_hosts_that_may_run_the_role() -> None:
    built = inventory(Host("a", roles=("trainer",)), "b", "c", PSERVERS=1)
    assert ranks(built) == [((), (0,)), ((0,), (1,)), ((), (2,))]


@pytest.mark.parametrize("name_or_endpoint", ["big", "h:2201", "me@h:2201", "me@H:2201"])
def test_a_list_names_hosts_by_name_or_by_endpoint(name_or_endpoint: str) -> None:
    built = inventory(Host("me@h:2201", name="big"), "me@h:2202", PSERVERS=[name_or_endpoint])
    assert ranks(built)[0][0] == (0,)
    assert ranks(built)[1][0] == ()


def test_a_host_name_shared_by_several_hosts_selects_them_all() -> None:
    built = inventory("h:2201", "h:2202", "g", PSERVERS=["h"])
    assert built.pserver_count == 2


def test_an_omitted_port_or_user_matches_as_in_ssh() -> None:
    assert inventory("me@[fe80::1]", "x", PSERVERS=["fe80::1"]).pserver_count == 1
    assert inventory("me@h", "x", PSERVERS=["h:22"]).pserver_count == 1
    assert "'root@h'" in problem("me@h", "x", PSERVERS=["root@h"])


def test_an_unknown_host_in_a_list_is_an_error_with_a_suggestion() -> None:
    assert problem("10.0.0.10", "x", PSERVERS=["10.0.0.11"]) == (
        "settings: PSERVERS names '10.0.0.11', which is not in HOSTS; did you mean 10.0.0.10?"
    )


def test_all_mistakes_about_roles_are_reported_together_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "conf.py"
    path.write_text("HOSTS = ['a', Host('b', roles='trainer')]\nPSERVERS = ['b', 'z']\nTRAINERS = 3\n")
    with pytest.raises(ConfigError) as raised:
        build(load(path, {}))
    assert str(raised.value).split("\n") == [
        f"{path}:2: PSERVERS names 'b', whose Host(...) does not allow a pserver",
        f"{path}:2: PSERVERS names 'z', which is not in HOSTS",
        f"{path}:3: TRAINERS = 3: only 2 of the 2 hosts may run a trainer",
    ]
    assert [finding["line"] for finding in raised.value.details["findings"]] == [2, 2, 3]


@pytest.mark.parametrize(
    ("hosts", "values", "role"),
    [
        (["a"], {"TRAINERS": 0}, "trainer"),
        (["a"], {"TRAINERS": [], "ENGINE": "none"}, "trainer"),
        ([Host("a", roles=("pserver",))], {}, "trainer"),
        (["a"], {"PSERVERS": []}, "pserver"),
        ([Host("a", pservers=0)], {}, "pserver"),
    ],
)
def test_a_job_without_trainers_or_our_engine_without_pservers_is_an_error(
    hosts: list[Any], values: dict[str, object], role: str
) -> None:
    assert f"leaves no host to run a {role}" in problem(*hosts, **values)


def test_a_job_has_no_pservers_if_the_user_says_so() -> None:
    assert [node.pserver_ranks for node in inventory("a", "b", PSERVERS=0).nodes] == [(), ()]


@pytest.fixture
def four() -> Inventory:
    return inventory(
        Host("root@10.0.0.10", tags=("cpu", "old")),
        Host("root@10.0.0.11:2201", tags=("gpu",)),
        Host("root@10.0.0.11:2202", tags=("gpu", "old"), name="big"),
        "[fe80::1]",
    )


@pytest.mark.parametrize(
    ("selection", "selected"),
    [
        ("node3", [3]),
        ("node03", [3]),
        ("node[0-1,3]", [0, 1, 3]),
        ("node[2]", [2]),
        ("node[0-3]", [0, 1, 2, 3]),
        ("node2,node[0-1],node0", [0, 1, 2]),
        ("10.0.0.10", [0]),
        ("10.0.0.11", [1, 2]),
        ("10.0.0.11:2202", [2]),
        ("root@10.0.0.11:2201", [1]),
        ("fe80::1", [3]),
        ("[fe80::1]", [3]),
        ("[fe80::1]:22", [3]),
        ("big", [2]),
        ("gpu", [1, 2]),
        ("old, node3", [0, 2, 3]),
        ("failed@last", [1, 3]),
        ("failed@last,node0,", [0, 1, 3]),
    ],
)
def test_the_only_option_selects_by_label_range_host_name_tag_and_last_failure(
    four: Inventory, selection: str, selected: list[int]
) -> None:
    assert ids(select(four, selection, failed_last=[3, 1, 99])) == selected


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ("node9", "--only: no node 'node9'"),
        ("node[2-9]", "--only: no node 'node4'"),
        ("node[7-99999999999999]", "--only: no node 'node7'"),
        ("node[3-1]", "--only node[3-1]: the range 3-1 runs backwards"),
        ("node[]", "--only node[]: '' is not a node id or a range of ids"),
        ("node[a]", "--only node[a]: 'a' is not a node id or a range of ids"),
        ("node[0", "--only node[0: a bracket is missing"),
        ("node0]", "--only node0]: a bracket is missing"),
        ("gqu", "--only: no node 'gqu'; did you mean gpu?"),
        ("10.0.0.99", "--only: no node '10.0.0.99'; did you mean 10.0.0.11?"),
        ("", "--only : selects no nodes"),
        (",", "--only ,: selects no nodes"),
        ("failed@last", "--only failed@last: no node failed last time"),
        ("node0 node1", "--only: no node 'node0 node1'"),
        ("*", "--only: no node '*'"),
    ],
)
def test_a_selection_that_matches_no_node_is_a_usage_error(four: Inventory, selection: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        select(four, selection)
    assert str(raised.value).startswith(message)


def test_an_error_about_an_unknown_name_lists_the_existing_ones(four: Inventory) -> None:
    with pytest.raises(UsageError) as raised:
        select(four, "nothing-like-it")
    assert raised.value.hint == "known: node[0-3]; hosts 10.0.0.10, 10.0.0.11, big, fe80::1; tags cpu, gpu, old"


def test_the_list_of_existing_names_is_shortened_on_large_clusters() -> None:
    with pytest.raises(UsageError) as raised:
        select(inventory(*[f"h{n}" for n in range(300)]), "zzz")
    assert raised.value.hint == "known: node[0-299]; hosts h0, h1, h2, h3, h4, h5, h6, h7 and 292 more"


def test_a_machine_named_like_the_label_of_another_node_is_ambiguous() -> None:
    built = inventory("node1", "node2", "node7")
    with pytest.raises(UsageError, match="ambiguous") as raised:
        select(built, "node1")
    assert raised.value.hint == "write node[1] for the label, or node[0] for the host"
    assert ids(select(built, "node[1]")) == [1]
    assert ids(select(built, "node7")) == [2]
    assert ids(select(built, "node0")) == [0]
    assert ids(select(inventory("node0", "node1"), "node1")) == [1]


def test_a_thousand_hosts_become_a_thousand_nodes_quickly() -> None:
    built = inventory(*[f"root@10.0.{n // 250}.{n % 250 + 1}" for n in range(1000)])
    assert built.nodes[999].trainer_ranks == (999,)
    assert ids(select(built, "node[0-999]")) == list(range(1000))


@pytest.mark.parametrize(
    ("numbers", "folded"),
    [
        ([], ""),
        ([3], "3"),
        ([3, 4], "3,4"),
        ([4, 3, 5, 3], "3-5"),
        ([*range(14), 15], "0-13,15"),
    ],
)
def test_ids_fold_into_ranges(numbers: list[int], folded: str) -> None:
    assert fold(numbers) == folded


@pytest.mark.parametrize(("numbers", "text"), [([], ""), ([3], "node3"), ([0, 1, 2, 7], "node[0-2,7]")])
def test_a_nodeset_is_written_in_the_syntax_of_only(numbers: list[int], text: str) -> None:
    assert nodeset(numbers) == text


MANY = inventory(*[f"h{n}" for n in range(60)])


@given(st.sets(st.integers(0, 59), min_size=1))
def test_a_folded_nodeset_selects_the_same_nodes_again(numbers: set[int]) -> None:
    assert ids(select(MANY, nodeset(numbers))) == sorted(numbers)
    assert ids(select(MANY, f"node[{fold(numbers)}]")) == sorted(numbers)


@given(st.text(alphabet="node0123456789[],-@h. ", max_size=30))
def test_any_nodeset_either_selects_nodes_or_is_a_usage_error(selection: str) -> None:
    try:
        answer: object = select(MANY, selection)
    except UsageError as exc:
        answer = exc.message
    assert answer
