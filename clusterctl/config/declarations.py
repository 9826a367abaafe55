"""Every setting of conf.py: its names, what it may be, its default, and what it does.

This table is the one place that declares a setting. `Settings` has a field and `conf.py.example` a passage
for each of them; tests hold the three in step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from clusterctl.config.hosts import some_hosts
from clusterctl.config.parsers import (
    Parser,
    choice,
    command,
    environment,
    flag,
    globs,
    interface,
    local_path,
    optional,
    remote_root,
    seconds,
    text,
    whole,
)
from clusterctl.config.values import Best, Every, Mode, Restarts


@dataclass(frozen=True)
class Setting:
    """`default` is what a person would write in conf.py; `parse` turns that into the field of Settings.

    The value of a `secret` one is in no message.
    """

    name: str
    parse: Parser[Any]
    default: object
    doc: str
    old: str = ""
    secret: bool = False

    @property
    def field(self) -> str:
        return self.name.lower()

    @property
    def spellings(self) -> tuple[str, ...]:
        """The names that conf.py may use, the preferred one first."""
        return (self.name, self.old) if self.old else (self.name,)


def _listed(value: object) -> object:
    """HOSTS is checked as a whole, by `read_hosts`."""
    return value


TABLE: Final[tuple[Setting, ...]] = (
    Setting("HOSTS", _listed, (), '"user@host:port" (user and port may be left out), or Host(...); required'),
    Setting("ROOT_DIR", remote_root, "~/clusterctl", "where jobs live on every node; ~ is each node's own home"),
    # what runs
    Setting("PYTHON", text, "python3", "the interpreter on the nodes; a leading `python` in a command means it"),
    Setting("TRAINER_COMMAND", command, "python train.py", "what a trainer runs, in the job directory"),
    Setting("PSERVER_COMMAND", optional(command), None, "what a pserver runs; None: our own parameter server"),
    Setting("ENV", environment, {}, "environment variables for every process of the job", secret=True),
    Setting("LD_LIBRARY_PATH", optional(text), None, "where every process finds shared libraries"),
    Setting("USE_GPU", flag, False, "told to the training program", old="PADDLE_USE_GPU"),
    Setting("SHARDS", globs, (), "files of which each trainer's node gets only its own, such as train.txt-*"),
    # where it runs
    Setting("PSERVERS", optional(some_hosts), None, "a number (the first N hosts) or a list of hosts; None: all"),
    Setting("TRAINERS", optional(some_hosts), None, "the same for trainers"),
    Setting("PSERVERS_PER_NODE", whole(1), 1, "pservers on each host that has any"),
    Setting("TRAINERS_PER_NODE", whole(1), 1, "trainers on each host that has any"),
    # network between the nodes
    Setting(
        "NIC",
        optional(interface),
        None,
        "the interface of pservers, or its subnet; None: the address at which SSH reached the node",
        old="PADDLE_NIC",
    ),
    Setting("PORT", whole(1, 65535), 7164, "the first port of a pserver; when taken, the next", old="PADDLE_PORT"),
    Setting("PORTS_NUM", whole(1, 1000), 1, "ports per pserver for dense tables", old="PADDLE_PORTS_NUM"),
    Setting(
        "PORTS_NUM_FOR_SPARSE",
        whole(0, 1000),
        1,
        "ports per pserver for sparse tables",
        old="PADDLE_PORTS_NUM_FOR_SPARSE",
    ),
    Setting("PS_SECURITY", choice("curve", "none"), "curve", '"none" only on a network that you trust'),
    Setting("RELAY", choice("auto", "always", "never"), "auto", "whether nodes pass the workspace on to each other"),
    # SSH
    Setting("SSH_CONFIG", optional(local_path), None, "the SSH configuration; None: ~/.ssh/config"),
    Setting("IDENTITY_FILE", optional(local_path), None, "the private key; None: ssh-agent and ~/.ssh as usual"),
    Setting("KNOWN_HOSTS", optional(local_path), None, "the known host keys; None: ~/.ssh/known_hosts"),
    Setting("STRICT_HOST_KEYS", flag, True, "False connects to hosts whose key nobody checked"),
    # training
    Setting("MODE", Mode.parse, "sync", '"sync", "async", "ssp(4)" or "geo(25)"'),
    Setting("SEED", whole(0, 2**63 - 1), 0, "the seed of initial values and of the readers' random numbers"),
    Setting(
        "ENGINE",
        choice("clusterctl", "none", "paddle", "torch", "dmlc", "tensorflow", "mpi"),
        "clusterctl",
        'whose variables programs find, "clusterctl", "paddle", "torch", "mpi", "dmlc", "tensorflow" or "none"',
    ),
    Setting("WIRE", choice("float32", "float16"), "float32", "the numbers on the network"),
    Setting("KEY_CACHE", flag, False, "remember lists of ids on both sides"),
    # checkpoints
    Setting("SAVE_EVERY", Every.parse, "1 pass", '"1 pass", "500 steps" or "600 s"; a bare number is steps'),
    Setting("KEEP", whole(1), 3, "how many checkpoints are kept"),
    Setting("KEEP_BEST", optional(Best.parse), None, 'and the best one, such as "auc:max"'),
    # failures
    Setting("HEARTBEAT_S", seconds(0.05), 1, "how often nodes tell that they live"),
    Setting("NODE_GRACE_S", seconds(1), 30, "how long a node may be silent before it counts as lost"),
    Setting("GRACE_S", seconds(0), 10, "how long a process has to end before it is killed"),
    Setting(
        "RESTARTS",
        Restarts.parse,
        3,
        'how often a process may be restarted within an hour, or {"pserver": 1, "trainer": 5} (0 for other engines)',
    ),
    Setting(
        "ON_TRAINER_LOSS",
        choice("fail", "shrink", "wait"),
        "fail",
        '"fail", "shrink" or "wait", once RESTARTS are spent',
    ),
    Setting("STALL_S", seconds(1), 600, "after how long without a step a process is stalled"),
    Setting(
        "ON_STALL",
        choice("warn", "fail"),
        "warn",
        'what to do about it, "warn" or "fail", which kills it and counts as a failure',
    ),
    Setting(
        "ON_NAN",
        choice("warn", "fail", "skip"),
        "warn",
        'when a loss or gradient is not finite, "warn", "fail" or "skip", which leaves the batch out',
    ),
    Setting("TIME_LIMIT_S", optional(seconds(1)), None, "how long a run may take"),
    Setting("MEMORY_LIMIT_MB", optional(whole(1)), None, "address space of each process"),
    Setting("OPEN_FILES", optional(whole(64)), None, "open files of each process"),
)

BY_SPELLING: Final[dict[str, Setting]] = {name: setting for setting in TABLE for name in setting.spellings}
