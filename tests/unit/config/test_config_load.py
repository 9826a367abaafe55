"""Running conf.py: which names count, which mistakes are reported, and for which line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.config import Settings, load
from clusterctl.errors import ConfigError

OLD_CONF = """\
HOSTS = [
    "root@192.168.100.17",
    "root@192.168.100.18",
]
\'\'\'
workspace configuration
\'\'\'
#root dir for workspace
ROOT_DIR = "/home/paddle"
\'\'\'
network configuration
\'\'\'
#pserver nics
PADDLE_NIC = "eth0"
#pserver port
PADDLE_PORT = 7164
#pserver ports num
PADDLE_PORTS_NUM = 2
#pserver sparse ports num
PADDLE_PORTS_NUM_FOR_SPARSE = 2
#trainer whether use gpu
PADDLE_USE_GPU = "False"
#environments setting for all processes in cluster job
LD_LIBRARY_PATH = "/usr/local/cuda/lib64:/usr/lib64"
"""


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path `conf.py` in an empty current directory."""
    monkeypatch.chdir(tmp_path)
    return Path("conf.py")


def write_and_load(path: Path, text: str, **overrides: object) -> Settings:
    path.write_text(text)
    return load(path, {"HOME": "/home/me"}, overrides=overrides)


def findings_of(path: Path, text: str, **overrides: object) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        write_and_load(path, text, **overrides)
    return str(raised.value).split("\n")


def test_the_conf_of_the_old_launcher_loads_unchanged(conf: Path) -> None:
    settings = write_and_load(conf, OLD_CONF)
    assert [host.spec for host in settings.hosts] == ["root@192.168.100.17", "root@192.168.100.18"]
    assert settings.root_dir == "/home/paddle"
    assert settings.nic == "eth0"
    assert (settings.port, settings.ports_num, settings.ports_num_for_sparse) == (7164, 2, 2)
    assert settings.use_gpu is False
    assert settings.ld_library_path == "/usr/local/cuda/lib64:/usr/lib64"


def test_all_mistakes_of_a_file_are_reported_together_in_the_order_of_its_lines(conf: Path) -> None:
    text = (
        "import os\n\nHOSTS = [\n    'root@10.0.0.7',\n    'root@10.0.0.8',\n    'x',\n"
        "    'root@10.0.0.9:99999',\n]\nON_NAN = 'stop'\nPORT = '7164'\n\nPROTS_NUM = 3\n"
    )
    assert findings_of(conf, text) == [
        "conf.py:7: HOSTS[3] 'root@10.0.0.9:99999': port must be 1 to 65535",
        'conf.py:9: ON_NAN = \'stop\': must be "warn" or "fail" or "skip"',
        "conf.py:10: PORT = '7164': must be a whole number, without quotes",
        "conf.py:12: PROTS_NUM is not a setting; did you mean PORTS_NUM?",
    ]


def test_the_details_hold_every_finding_in_machine_readable_form(conf: Path) -> None:
    conf.write_text("HOSTS = ['h:0']\nPORT = 0\n")
    with pytest.raises(ConfigError) as raised:
        load(conf, {})
    assert raised.value.exit_code == 2
    assert raised.value.details["findings"] == [
        {
            "file": "conf.py",
            "line": 1,
            "key": "HOSTS[0]",
            "message": "HOSTS[0] 'h:0': port must be 1 to 65535",
        },
        {"file": "conf.py", "line": 2, "key": "PORT", "message": "PORT = 0: must be from 1 to 65535"},
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("HOSTS = ['a',\n  'b:0']", 2),
        ("HOSTS = ['a']\nHOSTS += ['b:0']", 2),
        ("HOSTS: list[str] = [\n'a',\n'b:0']", 3),
        ("if True:\n    HOSTS = (\n  'a',\n  'b:0')", 4),
        ("HOSTS = [\n 'a',\n Host(\n  'b:0')]", 3),
        ("HOSTS = ['a']\n\nHOSTS.append('b:0')", 1),
        ("names = ['a', 'b:0']\nHOSTS = [name for name in names]", 2),
        ("HOSTS = ['a'] + [\n 'b:0']", 1),
        ("try:\n  HOSTS = [1/0]\nexcept ArithmeticError:\n  HOSTS = ['a',\n  'b:0']", 5),
    ],
)
def test_a_wrong_host_is_reported_on_its_own_line_or_that_of_the_assignment(conf: Path, text: str, line: int) -> None:
    assert findings_of(conf, text) == [f"conf.py:{line}: HOSTS[1] 'b:0': port must be 1 to 65535"]


def test_only_upper_case_names_count(conf: Path) -> None:
    text = (
        "import os as OS\nfrom socket import AF_INET\nfrom typing import IO\n_PRIVATE = 1\nport = 1\n"
        "class GPU: pass\ndef N(): return 'h'\nHOSTS = [N() + str(n) for n in range(2)]\n"
    )
    assert [host.spec for host in write_and_load(conf, text).hosts] == ["h0", "h1"]


def test_unknown_names_are_mistakes_unless_they_come_from_a_star_import(conf: Path) -> None:
    text = "from errno import *\nHOSTS = ['h']\nMY_OWN = 3\n"
    assert findings_of(conf, text) == ["conf.py:3: MY_OWN is not a setting"]


def test_an_unknown_name_set_without_an_assignment_is_still_found(conf: Path) -> None:
    assert findings_of(conf, "HOSTS = ['h']\nglobals()['PROT'] = 3\n") == [
        "conf.py: PROT is not a setting; did you mean PORT?"
    ]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("PADDLE_PORT_NUM", "PADDLE_PORTS_NUM"),
        ("PADDLE_ENV", "ENV"),
        ("TRAINER", "TRAINERS"),
        ("HEARTBEAT", "HEARTBEAT_S"),
        ("HOST", "HOSTS"),
    ],
)
def test_an_unknown_name_gets_the_nearest_known_one_as_suggestion(conf: Path, name: str, nearest: str) -> None:
    assert findings_of(conf, f"HOSTS = ['h']\n{name} = 1\n") == [
        f"conf.py:2: {name} is not a setting; did you mean {nearest}?"
    ]


def test_a_name_unlike_any_other_gets_a_hint_and_no_suggestion(conf: Path) -> None:
    conf.write_text("HOSTS = ['h']\nXYZZY = 1\n")
    with pytest.raises(ConfigError, match=r"(?m)conf\.py:2: XYZZY is not a setting$") as raised:
        load(conf, {})
    assert raised.value.hint == "see conf.py.example for all settings; use lower case for your own names"


def test_a_setting_whose_value_is_a_class_is_a_mistake_and_not_ignored(conf: Path) -> None:
    assert findings_of(conf, "HOSTS = ['h']\nPYTHON = str\n")[0].startswith("conf.py:2: PYTHON = <class")


def test_old_and_new_name_may_both_be_given_if_they_agree(conf: Path) -> None:
    text = "HOSTS = ['h']\nPADDLE_USE_GPU = 'False'\nUSE_GPU = False\nPORT = 7000\nPADDLE_PORT = 7000\n"
    assert write_and_load(conf, text).port == 7000


def test_old_and_new_name_with_different_values_are_an_error_at_the_later_line(conf: Path) -> None:
    text = "HOSTS = ['h']\nPORT = 7000\n\nPADDLE_PORT = 7001\n"
    assert findings_of(conf, text) == ["conf.py:4: PADDLE_PORT = 7001 contradicts PORT = 7000"]


def test_a_syntax_error_is_reported_with_file_and_line(conf: Path) -> None:
    [finding] = findings_of(conf, "HOSTS = ['h']\nPORT = = 3\n")
    assert finding.startswith("conf.py:2: SyntaxError: ")
    [finding] = findings_of(conf, "HOSTS = ['h']\nprint 'python 2'\n")
    assert finding.startswith("conf.py:2: SyntaxError: ")
    [finding] = findings_of(conf, "HOSTS = ['h']\nreturn 3\n")
    assert finding == "conf.py:2: SyntaxError: 'return' outside function"


def test_bytes_that_are_not_python_are_reported(conf: Path) -> None:
    for content in (b"HOSTS = []\0", b"HOSTS = ['\xff']", b"((((" * 5000):
        conf.write_bytes(content)
        with pytest.raises(ConfigError, match=r"^conf\.py(:\d+)?: "):
            load(conf, {})


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("\nHOSTS = [1 / 0]", "conf.py:2: ZeroDivisionError: division by zero"),
        ("def f():\n    raise OSError('a\\nb')\nf()", "conf.py:2: OSError: a b"),
        (
            "import json\njson.loads('')",
            "conf.py:2: JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        ),
        ("raise SystemExit", "conf.py:1: SystemExit"),
        ("HOSTS = [\n  Host('h', role='x')]", "conf.py:2: Host(...) has no role; did you mean roles?"),
        ("HOSTS = [Host('h', xyzzy=1)]", "conf.py:1: Host(...) has no xyzzy"),
    ],
)
def test_an_exception_in_the_file_is_reported_with_the_line_of_the_file(conf: Path, text: str, finding: str) -> None:
    assert findings_of(conf, text) == [finding]


def test_the_error_for_a_missing_file_says_how_to_create_or_name_one(conf: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?m)^conf\.py: no such file$") as raised:
        load(None, {})
    assert "clusterctl init" in str(raised.value.hint)
    assert "--conf" in str(raised.value.hint)


def test_a_directory_in_place_of_the_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path, {})


def test_without_a_path_the_file_is_named_by_the_environment_or_is_conf_py_here(conf: Path, tmp_path: Path) -> None:
    conf.write_text("HOSTS = ['here']\n")
    other = tmp_path / "other.py"
    other.write_text("HOSTS = ['there']\n")
    assert load(None, {}).hosts[0].hostname == "here"
    assert load(None, {"CLUSTERCTL_CONF": ""}).source == Path("conf.py")
    assert load(None, {"CLUSTERCTL_CONF": str(other)}).hosts[0].hostname == "there"
    assert load(conf, {"CLUSTERCTL_CONF": str(other)}).hosts[0].hostname == "here"


def test_the_file_runs_in_its_own_namespace(conf: Path) -> None:
    text = (
        "from clusterctl.config import Host as Imported\nassert Imported is Host\n"
        "assert __file__.endswith('conf.py')\nassert 'load' not in globals()\n"
        "def f(x: undefined_name_is_evaluated_without_future_annotations = 1): pass\n"
    )
    [finding] = findings_of(conf, text)
    assert finding.startswith("conf.py:5: NameError")
    write_and_load(conf, "HOSTS = ['h']\nhelper = 1\n")
    [finding] = findings_of(conf, "HOSTS = [helper]\n")
    assert finding.startswith("conf.py:1: NameError")


def test_output_of_the_file_does_not_reach_stdout(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_and_load(conf, "HOSTS = ['h']\nprint('hello')\n")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "hello\n")


def test_overrides_take_precedence_over_the_file_and_over_old_names(conf: Path) -> None:
    settings = write_and_load(conf, "HOSTS = ['h']\nPADDLE_PORT = 7000\nSEED = 1\n", PORT=8000, MODE="async")
    assert (settings.port, settings.seed, str(settings.mode)) == (8000, 1, "async")


def test_a_wrong_override_is_attributed_to_the_command_line(conf: Path) -> None:
    assert findings_of(conf, "PORT = 5\nHOSTS = ['h']", PORT=0, SEDE=1, ON_STALL="stop", HOSTS=["x:0"]) == [
        "command line: SEDE is not a setting; did you mean SEED?",
        "command line: PORT = 0: must be from 1 to 65535",
        'command line: ON_STALL = \'stop\': must be "warn" or "fail"',
        "command line: HOSTS[0] 'x:0': port must be 1 to 65535",
    ]


def chosen_in(path: Path, text: str, **chosen: str) -> Settings:
    path.write_text(text)
    return load(path, {"HOME": "/home/me"}, chosen=chosen)


def test_a_setting_chosen_as_text_is_a_python_literal_or_else_a_string(conf: Path) -> None:
    settings = chosen_in(
        conf,
        "HOSTS = ['h']\nPADDLE_PORT = 7000\nSEED = 1\n",
        **{"PORT": "0x1F90", "MODE": "ssp(4)", "SAVE_EVERY": "500 steps", "KEEP_MODELS": "all", "WIRE": "'float16'"},
        **{"RESTARTS": '{"pserver": 1, "trainer": 5}', "TIME_LIMIT_S": " None", "USE_GPU": "True", "STALL_S": "2.5"},
        **{"TRAINERS": "['h']", "NIC": "[1", "ENV": '{"A": "1"}', "PADDLE_PORTS_NUM": "2"},
    )
    assert (settings.port, settings.seed, str(settings.mode), settings.ports_num) == (8080, 1, "ssp(4)", 2)
    assert (str(settings.save_every), settings.keep_models, settings.wire) == ("500 steps", None, "float16")
    assert (settings.restarts, settings.time_limit_s, settings.use_gpu) == ((1, 5), None, True)
    assert (settings.stall_s, settings.trainers, settings.nic, settings.env["A"]) == (2.5, ("h",), "[1", "1")
    assert settings.chosen["MODE"] == "ssp(4)"
    assert settings.chosen["PORTS_NUM"] == "2"
    assert settings.place("PORT") == "--set PORT: "
    assert "PORT" not in load(conf, {}).chosen


def test_a_wrong_choice_is_reported_as_in_conf_py_and_names_the_option(conf: Path) -> None:
    chosen = {"MODE": "fast", "PADDLE_PORT": "'7164'", "SEDE": "1", "mode": "async", "NODE_GRACE_S": "1"}
    with pytest.raises(ConfigError) as raised:
        chosen_in(conf, "HOSTS = ['h']\nHEARTBEAT_S = 2\nKEEP = 0\n", **chosen)
    assert raised.value.exit_code == 2
    assert str(raised.value).split("\n") == [
        "conf.py:2: HEARTBEAT_S = 2.0 must be less than NODE_GRACE_S",
        "conf.py:3: KEEP = 0: must be 1 or more",
        "command line: --set SEDE is not a setting; did you mean SEED?",
        "command line: --set mode is not a setting; did you mean MODE?",
        'command line: --set MODE = \'fast\': must be "sync", "async", "half-async", "ssp(S)" with S >= 0, or '
        '"geo(K)" with K >= 1',
        "command line: --set PADDLE_PORT = '7164': must be a whole number, without quotes",
    ]
    with pytest.raises(ConfigError, match=r"conf.py:2: WIRE = 'int8' needs MODE = \"sync\""):
        chosen_in(conf, "HOSTS = ['h']\nWIRE = 'int8'\n", MODE="async")
    with pytest.raises(ConfigError, match="--set PORT = 65535 leaves no room"):
        chosen_in(conf, "HOSTS = ['h']\nPORT = 5\n", PORT="65535")
    with pytest.raises(ConfigError) as raised:
        chosen_in(conf, "HOSTS = ['h']\n", ENV="['geheim']")
    assert "geheim" not in str(raised.value)


def test_local_paths_are_absolute_and_root_dir_keeps_its_tilde(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    text = (
        "HOSTS = [Host('h', identity='~/.ssh/other')]\nIDENTITY_FILE = '~/.ssh/id'\n"
        "KNOWN_HOSTS = 'known_hosts'\nSSH_CONFIG = '/etc/ssh/ssh_config'\nROOT_DIR = '~/jobs/'\n"
    )
    settings = write_and_load(folder / "conf.py", text)
    assert settings.identity_file == Path("/home/me/.ssh/id")
    assert settings.hosts[0].identity == Path("/home/me/.ssh/other")
    assert settings.known_hosts == folder / "known_hosts"
    assert settings.ssh_config == Path("/etc/ssh/ssh_config")
    assert settings.root_dir == "~/jobs"


def test_odd_local_paths_do_no_harm(conf: Path, tmp_path: Path) -> None:
    assert write_and_load(conf, "HOSTS = ['h']\nIDENTITY_FILE = '.'\n").identity_file == tmp_path
    [finding] = findings_of(conf, "HOSTS = ['h']\nIDENTITY_FILE = '~nobody-at-all/id'\n")
    assert finding.startswith("conf.py:2: IDENTITY_FILE = '~nobody-at-all/id': ")


def test_settings_know_their_source_and_the_lines_that_set_them(conf: Path) -> None:
    settings = write_and_load(conf, "HOSTS = ['h']\nPADDLE_PORT = 7000\n")
    assert settings.source == conf
    assert dict(settings.lines) == {"HOSTS": 1, "PORT": 2}
    assert settings.place("PORT") == "conf.py:2: "
    assert settings.place("SEED") == "conf.py: "


def test_settings_can_be_compared_and_hashed_and_hide_the_environment_of_the_job(conf: Path) -> None:
    first = write_and_load(conf, "HOSTS = ['h']\nENV = {'TOKEN': 's3cret'}\n")
    second = write_and_load(conf, "\nHOSTS = ['h']\nENV = {'TOKEN': 's3cret'}\n")
    assert first == second
    assert hash(first) == hash(second)
    assert "s3cret" not in repr(first)


def test_a_wrong_environment_is_reported_without_its_secrets(conf: Path) -> None:
    assert findings_of(conf, "HOSTS = ['h']\nENV = {'TOKEN': 's3cret', 'N': True}\n") == [
        "conf.py:2: ENV: the value of N must be a string"
    ]
    assert "s3cret" not in str(findings_of(conf, "HOSTS = ['h']\nENV = ['TOKEN=s3cret']\n"))
    assert "s3cret" not in str(findings_of(conf, "HOSTS = [Host('h', env='TOKEN=s3cret')]\n"))


def test_loading_needs_none_of_the_heavy_libraries(tmp_path: Path) -> None:
    (tmp_path / "conf.py").write_text("HOSTS = ['h']\n")
    program = (
        "import sys; from clusterctl.config import load; from clusterctl.inventory import build\n"
        "build(load(None, {}))\n"
        "heavy = {'paramiko', 'fabric', 'numpy', 'zmq', 'rich', 'typer', 'cryptography'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
