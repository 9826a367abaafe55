"""The properties that docker/ promises of its images and containers."""

from __future__ import annotations

import subprocess

from real.docker.compose import USER, Compose, Node, docker, image


def test_the_image_has_no_host_key_and_no_password(containers: Compose) -> None:
    name = image("CLUSTERCTL_NODE_IMAGE")
    script = "find / -xdev -name 'ssh_host_*'; cut -d: -f1,2 /etc/shadow"
    lines = docker("run", "--rm", "--network=none", "--entrypoint=sh", name, "-c", script).splitlines()
    assert f"{USER}:*" in lines
    assert {line.split(":")[1] for line in lines} <= {"*", "!", "!*"}


def test_every_node_has_its_own_key_and_keeps_it(cluster: Compose) -> None:
    keys = [node.host_key for node in cluster.nodes]
    assert len(set(keys)) == len(keys)
    docker("restart", "-t", "2", *(node.name for node in cluster.nodes))
    assert [node.host_key for node in cluster.nodes] == keys


def test_ports_are_published_on_loopback_only_and_resources_are_limited(cluster: Compose) -> None:
    for container in [*cluster.nodes, cluster.control]:
        seen = container.inspect()
        published = [place for places in seen["NetworkSettings"]["Ports"].values() for place in places or ()]
        assert {place["HostIp"] for place in published} <= {"127.0.0.1"}
        assert list(seen["NetworkSettings"]["Networks"]) == [cluster.network]
        assert (seen["HostConfig"]["Memory"], seen["HostConfig"]["NanoCpus"]) == (1 << 30, 10**9)


def test_login_works_only_with_the_key_and_only_for_the_user(cluster: Compose) -> None:
    node = cluster.nodes[0]
    assert ssh(cluster, node, USER).returncode == 0
    for user, options in ((USER, ["PubkeyAuthentication=no"]), ("root", [])):
        refused = ssh(cluster, node, user, *options)
        assert (refused.returncode, "Permission denied (publickey)" in refused.stderr) == (255, True), refused


def test_containers_exit_promptly_on_term(cluster: Compose) -> None:
    """An exit code of 137 would mean that Docker had to kill it."""
    for container in (cluster.nodes[0], cluster.control):
        docker("stop", "-t", "30", container.name)
        assert container.inspect()["State"]["ExitCode"] in (0, 143, 255)


def ssh(cluster: Compose, node: Node, user: str, *options: str) -> subprocess.CompletedProcess[str]:
    settings = [
        "BatchMode=yes",
        "StrictHostKeyChecking=no",
        "UserKnownHostsFile=/dev/null",
        "IdentitiesOnly=yes",
        *options,
    ]
    words = [word for option in settings for word in ("-o", option)]
    address = ["-i", str(cluster.identity), "-p", str(node.port), f"{user}@127.0.0.1"]
    command = ["ssh", "-F", "/dev/null", *words, *address, "true"]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
