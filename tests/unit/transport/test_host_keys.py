from __future__ import annotations

import base64
import itertools
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.errors import RefusedError
from clusterctl.transport import HostKey, Transport, command
from clusterctl.transport.known_hosts import judge, known_hosts_name, known_keys, record
from support.clusters import Cluster, make_cluster
from support.nodes import TestNode, TestSettings
from support.openssh import make_key

TRUE = command("true")


def host_key(path: Path, name: str = "[127.0.0.1]:2201", kind: str = "ed25519") -> HostKey:
    key_type, text, *_ = make_key(path, kind).with_suffix(".pub").read_text().split()
    return HostKey(name, key_type, base64.b64decode(text))


def test_an_unknown_host_key_is_refused_with_its_fingerprint(cluster: Cluster, tmp_path: Path) -> None:
    settings = replace(cluster.settings, known_hosts=tmp_path / "known_hosts")
    node = cluster.nodes[0]
    with Transport(settings) as transport, pytest.raises(RefusedError, match="is not known") as caught:
        transport.run(node, TRUE)
    with Transport(settings) as transport:
        shown = transport.scan_host_key(node).fingerprint
    assert caught.value.exit_code == 4
    assert caught.value.node == node.label
    assert shown.startswith("SHA256:")
    assert shown in caught.value.message
    assert "clusterctl trust" in str(caught.value.hint)
    assert not (tmp_path / "known_hosts").exists()


def test_a_recorded_host_key_is_accepted_and_recorded_once(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "new" / "known_hosts"
    settings = replace(cluster.settings, known_hosts=file)
    node = cluster.nodes[0]
    with Transport(settings) as transport:
        key = transport.scan_host_key(node)
        assert transport.host_key_verdict(node, key).state == "unknown"
        assert transport.record_host_key(node, key)
        assert not transport.record_host_key(node, key)
        assert transport.host_key_verdict(node, key).state == "known"
        assert transport.run(node, TRUE).exit_code == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert len(file.read_text().splitlines()) == 1


def test_a_changed_host_key_is_refused_with_both_fingerprints_and_the_line(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.nodes[0]
    file = tmp_path / "known_hosts"
    recorded = host_key(tmp_path / "other", known_hosts_name("127.0.0.1", node.ssh_port or 22))
    file.write_text(f"# a comment\n\n{recorded.line}\n")
    with Transport(replace(cluster.settings, known_hosts=file)) as transport:
        shown = transport.scan_host_key(node)
        with pytest.raises(RefusedError, match="CHANGED") as caught:
            transport.run(node, TRUE)
        assert transport.host_key_verdict(node, shown).state == "changed"
    for part in (recorded.fingerprint, shown.fingerprint, f"{file}:3"):
        assert part in caught.value.message
    assert f"ssh-keygen -R '[127.0.0.1]:{node.ssh_port}' -f {file}" in str(caught.value.hint)


def test_a_revoked_host_key_is_refused_although_it_is_known(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.nodes[0]
    file = tmp_path / "known_hosts"
    with Transport(replace(cluster.settings, known_hosts=file)) as transport:
        key = transport.scan_host_key(node)
        file.write_text(f"{key.line}\n@revoked * {key.line.split(maxsplit=1)[1]}\n")
        with pytest.raises(RefusedError, match="revoked"):
            transport.run(node, TRUE)


def test_disabled_checks_accept_any_key_and_record_none(cluster: Cluster, tmp_path: Path) -> None:
    settings = replace(cluster.settings, known_hosts=tmp_path / "known_hosts", strict_host_keys=False)
    with Transport(settings) as transport:
        assert transport.run(cluster.nodes[0], TRUE).exit_code == 0
    assert not (tmp_path / "known_hosts").exists()


def test_hashed_entries_are_understood_and_written(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.nodes[0]
    file = tmp_path / "known_hosts"
    with Transport(replace(cluster.settings, known_hosts=file)) as transport:
        transport.record_host_key(node, transport.scan_host_key(node), hashed=True)
        assert file.read_text().startswith("|1|")
        assert transport.run(node, TRUE).exit_code == 0
    name = known_hosts_name("127.0.0.1", node.ssh_port or 22)
    subprocess.run(["ssh-keygen", "-F", name, "-f", file], check=True, capture_output=True)


def test_of_two_recorded_keys_the_same_one_decides_as_with_openssh(tmp_path: Path) -> None:
    """The server has two kinds of key. Each may be recorded, wrong, or both, in either order."""
    ecdsa = make_key(tmp_path / "ecdsa", "ecdsa")
    with make_cluster("openssh", tmp_path, 1, f"HostKey {ecdsa}") as cluster:
        node = cluster.nodes[0]
        settings = replace(cluster.settings, known_hosts=tmp_path / "recorded")
        name = f"[127.0.0.1]:{node.ssh_port}"
        right = {"ecdsa": ecdsa, "ed25519": cluster.directory / "node0/host_key"}
        lines = {kind: f"{name} {path.with_suffix('.pub').read_text()}" for kind, path in right.items()}
        lines |= {f"wrong {kind}": host_key(tmp_path / f"wrong-{kind}", name, kind).line + "\n" for kind in right}
        verdicts = {}
        for pair in [*itertools.permutations(lines, 2)][1::2]:
            (tmp_path / "recorded").write_text("".join(lines[kind] for kind in pair))
            verdicts[pair] = (is_accepted(settings, node), is_accepted_by_openssh(settings, node))
        assert {pair for pair, (ours, theirs) in verdicts.items() if ours != theirs} == set()
        assert len(set(verdicts.values())) == 2


def is_accepted(settings: TestSettings, node: TestNode) -> bool:
    with Transport(settings) as transport:
        try:
            return transport.run(node, TRUE).exit_code == 0
        except RefusedError:
            return False


def is_accepted_by_openssh(settings: TestSettings, node: TestNode) -> bool:
    options = {"BatchMode": "yes", "StrictHostKeyChecking": "yes", "UserKnownHostsFile": settings.known_hosts}
    words = ["-F", "none", "-i", settings.identity_file, "-p", node.ssh_port, node.ssh_host, "true"]
    argv = ["ssh", *(f"-o{key}={value}" for key, value in options.items()), *map(str, words)]
    return subprocess.run(argv, capture_output=True, check=False, timeout=180).returncode == 0


@pytest.mark.parametrize(
    ("patterns", "name", "matches"),
    [
        ("10.0.0.*", "10.0.0.1", True),
        ("10.0.0.?,!10.0.0.1", "10.0.0.1", False),
        ("[10.0.0.1]:2201", "[10.0.0.1]:2201", True),
        ("[10.0.0.*]:22*", "[10.0.0.9]:2202", True),
        ("HOST", "host", True),
    ],
)
def test_patterns_match_as_in_openssh(tmp_path: Path, patterns: str, name: str, matches: bool) -> None:
    key = host_key(tmp_path / "key")
    file = tmp_path / "known_hosts"
    file.write_text(f"{patterns} {key.line.split(maxsplit=1)[1]}\n")
    lookup = subprocess.run(["ssh-keygen", "-F", name, "-f", file], check=False, capture_output=True)
    assert (lookup.returncode == 0) == matches, "OpenSSH disagrees"
    assert bool(known_keys([file], name)) == matches


def test_garbage_in_known_hosts_is_ignored(tmp_path: Path) -> None:
    key = host_key(tmp_path / "key")
    file = tmp_path / "known_hosts"
    file.write_bytes(
        b"\xff\xfe\none\ntwo fields\n|1|x|y ssh-ed25519 AAAA\nh ssh-ed25519 !!!\n" + key.line.encode() + b"\n"
    )
    assert judge(known_keys([file, tmp_path / "missing"], key.name), key).state == "known"


def test_no_key_is_lost_in_a_file_without_a_final_newline(tmp_path: Path) -> None:
    first, second = host_key(tmp_path / "one", "one"), host_key(tmp_path / "two", "two")
    file = tmp_path / "known_hosts"
    file.write_text(first.line)
    record(file, second)
    assert file.read_text() == f"{first.line}\n{second.line}\n"


def test_keys_recorded_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    key = host_key(tmp_path / "key")
    file = tmp_path / "known_hosts"
    names = [f"host{number}" for number in range(40)]
    threads = [threading.Thread(target=record, args=(file, HostKey(name, key.type, key.blob))) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(line.split()[0] for line in file.read_text().splitlines()) == sorted(names)
