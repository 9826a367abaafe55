"""Every setting: the values that it accepts and refuses, and that nothing is accepted without effect."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePosixPath

import pytest

from clusterctl.common.modes import Mode, SaveInterval
from clusterctl.config import Best, Host, from_values
from clusterctl.config.carriers import FORMS
from clusterctl.config.declarations import Setting
from clusterctl.config.settings import BY_SPELLING, TABLE
from clusterctl.config.values import Restarts
from clusterctl.errors import ConfigError


def setting(name: str, value: object) -> object:
    return getattr(from_values({"HOSTS": ["h"], name: value}), name.lower())


def finding(name: str, value: object) -> str:
    with pytest.raises(ConfigError) as raised:
        setting(name, value)
    return str(raised.value).removeprefix(f"settings: {name}").strip()


def test_no_two_settings_share_a_name() -> None:
    assert len(BY_SPELLING) == sum(len(entry.spellings) for entry in TABLE)


def test_the_old_names_are_those_of_the_old_launcher() -> None:
    assert {entry.old for entry in TABLE if entry.old} == {
        "PADDLE_NIC",
        "PADDLE_PORT",
        "PADDLE_PORTS_NUM",
        "PADDLE_PORTS_NUM_FOR_SPARSE",
        "PADDLE_USE_GPU",
    }


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry.name)
@pytest.mark.parametrize("value", [object(), 1j, b"x", [[]], {1: object()}, math.nan, "\0", [None]])
def test_no_setting_takes_nonsense_or_breaks_on_it(entry: Setting, value: object) -> None:
    values: dict[str, object] = {"HOSTS": ["h"]}
    with pytest.raises(ConfigError, match=f"^settings: {entry.name}"):
        from_values({**values, entry.name: value})


ACCEPTED: list[tuple[str, object, object]] = [
    ("ROOT_DIR", "/data//jobs/", "/data/jobs"),
    ("ROOT_DIR", "~", "~"),
    ("ROOT_DIR", "~/x/./y", "~/x/y"),
    ("ROOT_DIR", PurePosixPath("/a b"), "/a b"),
    ("ROOT_DIR", "~/x/node{node}", "~/x/node{node}"),
    ("VIA", "ssh", "ssh"),
    ("VIA", "local", "local"),
    ("VIA", ["my-carrier", "--to", "root@{host}"], ("my-carrier", "--to", "root@{host}")),
    ("VIA", ("/usr/bin/docker", "exec", "-i", "{host}"), ("/usr/bin/docker", "exec", "-i", "{host}")),
    ("VIA", ("docker", "compose", "exec", "-T", "{host}"), ("docker", "compose", "exec", "-T", "{host}")),
    ("VIA", ("podman", "exec", "--interactive=true", "{host}"), ("podman", "exec", "--interactive=true", "{host}")),
    ("VIA", ("kubectl", "exec", "-i", "{host}", "--"), ("kubectl", "exec", "-i", "{host}", "--")),
    ("VIA", ("srun", "-uN1", "-w", "{host}"), ("srun", "-uN1", "-w", "{host}")),
    ("PYTHON", "/opt/py/bin/python3", "/opt/py/bin/python3"),
    ("TRAINER_COMMAND", "python train.py --name 'a b'", ("python", "train.py", "--name", "a b")),
    ("TRAINER_COMMAND", ["sh", "-c", "a && b"], ("sh", "-c", "a && b")),
    ("PSERVER_COMMAND", "python server.py", ("python", "server.py")),
    ("PSERVER_COMMAND", None, None),
    ("TRAINER_THREADS", 8, 8),
    ("ENV", {"A": "x y\nz", "N": 3, "F": 0.5, "E": ""}, {"A": "x y\nz", "N": "3", "F": "0.5", "E": ""}),
    ("LD_LIBRARY_PATH", "/a:/b", "/a:/b"),
    ("BEFORE_START", "prepare", "prepare"),
    ("AFTER_END", None, None),
    ("SBATCH", ["--partition=gpu"], ("--partition=gpu",)),
    ("USE_GPU", True, True),
    ("USE_GPU", "True", True),
    ("USE_GPU", "false", False),
    ("SHARDS", "data/*.txt-*", ("data/*.txt-*",)),
    ("SHARDS", ["a-*", "b-*"], ("a-*", "b-*")),
    ("PSERVERS", 1, 1),
    ("PSERVERS", 0, 0),
    ("TRAINERS", ["h"], ("h",)),
    ("TRAINERS", [Host("root@h")], ("root@h",)),
    ("NIC", "eth0", "eth0"),
    ("PORT", 1, 1),
    ("PORTS_NUM", 8, 8),
    ("PORTS_NUM_FOR_SPARSE", 0, 0),
    ("PS_SECURITY", "none", "none"),
    ("RELAY", "never", "never"),
    ("STRICT_HOST_KEYS", False, False),
    ("MODE", "async", Mode("async")),
    ("SEED", 7, 7),
    ("ENGINE", "none", "none"),
    ("HEARTBEAT_S", 0.2, 0.2),
    ("NODE_GRACE_S", 5, 5.0),
    ("GRACE_S", 0, 0.0),
    ("RESTARTS", 0, Restarts(0, 0)),
    ("RESTARTS", {"trainer": 5}, Restarts(0, 5)),
    ("SAVE_EVERY", "1 pass", SaveInterval("pass", 1)),
    ("SAVE_MODEL_EVERY", "1 pass", SaveInterval("pass", 1)),
    ("ON_NAN", "warn", "warn"),
    ("WIRE", "float16", "float16"),
    ("WIRE", "int8", "int8"),
    ("WIRE", "int4", "int4"),
]


@pytest.mark.parametrize(("name", "value", "parsed"), ACCEPTED)
def test_a_valid_value_is_parsed_to_one_form(name: str, value: object, parsed: object) -> None:
    assert setting(name, value) == parsed
    assert type(setting(name, value)) is type(parsed)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ROOT_DIR", "jobs", "= 'jobs': must be an absolute path or start with ~/"),
        ("ROOT_DIR", "~me/jobs", "= '~me/jobs': must be an absolute path or start with ~/"),
        ("ROOT_DIR", "/a/../..", "= '/a/../..': must not contain .."),
        ("ROOT_DIR", "//", "= '//': must not be the root of the file system"),
        ("ROOT_DIR", "", "= '': must not be empty"),
        ("ROOT_DIR", "/a/{host}", "= '/a/{host}': only {node} stands for something here, not {host}"),
        ("VIA", "docker", f"= 'docker': {FORMS}"),
        ("VIA", "", f"= '': {FORMS}"),
        ("VIA", (), f"= (): {FORMS}"),
        ("VIA", None, f"= None: {FORMS}"),
        ("VIA", ("docker", 3, "{host}"), f"= ('docker', 3, '{{host}}'): {FORMS}"),
        ("VIA", ("", "{host}"), f"= ('', '{{host}}'): {FORMS}"),
        ("VIA", ("a", "b\n{host}"), "= ('a', 'b\\n{host}'): must not contain control characters"),
        (
            "VIA",
            ("docker", "exec", "-i", "box"),
            "= ('docker', 'exec', '-i', 'box'): has no {host}, the place for the name of the host, as in "
            '("docker", "exec", "-i", "{host}")',
        ),
        (
            "VIA",
            ("docker", "exec", "{host}"),
            "= ('docker', 'exec', '{host}'): needs -i, or commands get no input",
        ),
        (
            "VIA",
            ("kubectl", "exec", "-i", "{host}"),
            "= ('kubectl', 'exec', '-i', '{host}'): must end with \"--\", or kubectl takes options of the command for "
            "its own",
        ),
        (
            "VIA",
            ("srun", "-w", "{host}"),
            "= ('srun', '-w', '{host}'): needs -u, or srun holds back output after the last line end",
        ),
        ("TRAINER_COMMAND", "", "= '': must not be empty"),
        ("TRAINER_COMMAND", None, "= None: must be a string or a list of strings"),
        ("TRAINER_COMMAND", "python 'train.py", '= "python \'train.py": No closing quotation'),
        (
            "TRAINER_COMMAND",
            "a && b",
            '= \'a && b\': runs without a shell; for shell syntax write ["sh", "-c", "..."]',
        ),
        ("ENV", {"1A": "x"}, ": '1A' is not a valid environment variable name"),
        ("ENV", {"CLUSTERCTL_RANK": "1"}, ": CLUSTERCTL_RANK is set by clusterctl itself"),
        ("ENV", {"A": "x\0y"}, ": the value of A must not contain NUL characters"),
        ("ENV", ["A=1"], ': must be a dictionary, such as {"NAME": "value"}'),
        ("USE_GPU", 1, "= 1: must be True or False"),
        ("BEFORE_START", ["prepare"], "= ['prepare']: must be a string"),
        ("AFTER_END", "", "= '': must not be empty"),
        (
            "SHARDS",
            ["/data/*"],
            "= ['/data/*']: '/data/*' must be relative to the workspace and stay inside it",
        ),
        ("SHARDS", ["../x"], "= ['../x']: '../x' must be relative to the workspace and stay inside it"),
        ("PSERVERS", -1, "= -1: must be 0 or more"),
        ("PSERVERS", True, "= True: must be a whole number"),
        ("TRAINERS", "h", "= 'h': must be a number of hosts or a list of them"),
        ("PSERVERS_PER_NODE", 0, "= 0: must be 1 or more"),
        ("NIC", "eth 0", "= 'eth 0': must be the name of a network interface, such as eth0"),
        ("PORT", 65536, "= 65536: must be from 1 to 65535"),
        ("PORT", 7164.0, "= 7164.0: must be a whole number"),
        ("PORT", None, "= None: must be a whole number"),
        ("PORT", 65535, "= 65535 leaves no room for the 2 ports of a node's pservers"),
        ("STRICT_HOST_KEYS", None, "= None: must be True or False"),
        (
            "MODE",
            "ssp",
            '= \'ssp\': must be "sync", "async", "half-async", "ssp(S)" with S >= 0, or "geo(K)" with K >= 1',
        ),
        (
            "MODE",
            "geo(0)",
            '= \'geo(0)\': must be "sync", "async", "half-async", "ssp(S)" with S >= 0, or "geo(K)" with K >= 1',
        ),
        ("WIRE", "int2", '= \'int2\': must be "float32" or "float16" or "int8" or "int4"'),
        ("SEED", -1, "= -1: must be from 0 to 9223372036854775807"),
        ("HEARTBEAT_S", 0, "= 0: must be 0.05 s or more"),
        ("HEARTBEAT_S", 30, "= 30.0 must be less than NODE_GRACE_S"),
        ("GRACE_S", math.inf, "= inf: must be 0 s or more"),
        ("GRACE_S", "10", "= '10': must be a number of seconds"),
        ("SAVE_EVERY", "0 steps", "must look like"),
        ("SAVE_EVERY", "1 passs", "must look like"),
        ("SAVE_EVERY", True, "must look like"),
        ("SAVE_EVERY", None, "must look like"),
        ("SAVE_MODEL_EVERY", "0 steps", "must look like"),
        ("RESTARTS", {"trainers": 1}, 'must be a whole number, 0 or more, or {"pserver": 1, "trainer": 5}'),
        ("RESTARTS", -1, "must be a whole number, 0 or more"),
        ("KEEP_BEST", "auc", '= \'auc\': must look like "auc:max" or "loss:min"'),
        ("STALL_S", 0.5, "= 0.5: must be 1 s or more"),
        ("ON_STALL", "skip", '= \'skip\': must be "warn" or "fail"'),
        ("ON_NAN", "stop", '= \'stop\': must be "warn" or "fail" or "skip"'),
        ("MEMORY_LIMIT_MB", 0, "= 0: must be 1 or more"),
        ("OPEN_FILES", 16, "= 16: must be 64 or more"),
        ("RELAY", "perhaps", '= \'perhaps\': must be "auto" or "always" or "never"'),
    ],
)
def test_a_wrong_value_is_refused_with_the_reason(name: str, value: object, message: str) -> None:
    assert message.lstrip(": ") in finding(name, value)


def test_restarts_default_to_zero_for_other_engines() -> None:
    assert from_values({"HOSTS": ["h"]}).restarts == (3, 3)
    assert from_values({"HOSTS": ["h"], "ENGINE": "none"}).restarts == (0, 0)


@pytest.mark.parametrize("text", ["sync", "async", "half-async", "ssp(0)", "ssp(4)", "geo(25)"])
def test_a_mode_is_shown_as_it_is_written(text: str) -> None:
    assert str(Mode.parse(text)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1 pass", "1 pass"),
        ("2 passes", "2 pass"),
        (500, "500 steps"),
        ("1 step", "1 steps"),
        ("600s", "600 s"),
    ],
)
def test_save_every_accepts_passes_steps_and_seconds(value: object, text: str) -> None:
    assert str(SaveInterval.parse(value)) == text
    assert SaveInterval.parse(text) == SaveInterval.parse(value)


def test_the_best_checkpoint_is_named_by_metric_and_direction() -> None:
    assert Best.parse("auc:max") == Best("auc", "max")
    assert str(Best.parse("loss:min")) == "loss:min"


def test_values_can_be_any_mapping() -> None:
    values: Mapping[str, object] = {"HOSTS": ("h",)}
    assert from_values(values).source is None
