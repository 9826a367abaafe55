"""Every setting of conf.py: its names, its values, its default, and its meaning.

Settings are declared here and nowhere else. `Settings` has a field and `conf.py.example` a passage for each
of them; tests keep the three in step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from clusterctl.common.modes import Mode, SaveInterval
from clusterctl.config.carriers import parse_via
from clusterctl.config.hosts import some_hosts
from clusterctl.config.parsers import (
    OneOf,
    Parser,
    choice,
    command,
    count_or_all,
    environment,
    flag,
    globs,
    interface,
    local_path,
    optional,
    remote_root,
    seconds,
    strings,
    text,
    whole,
)
from clusterctl.config.values import Best, Restarts
from clusterctl.errors import UsageError


@dataclass(frozen=True)
class Setting:
    """One setting. `default` is written as in conf.py; `parse` turns that form into the field of Settings.

    No message contains the value of a `secret` setting.
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
        """The names allowed in conf.py, the preferred one first."""
        return (self.name, self.old) if self.old else (self.name,)

    @property
    def examples(self) -> Sequence[str]:
        """Values for completion: all of them if they are words, else those that the meaning has in quotes."""
        if isinstance(self.parse, OneOf):
            return self.parse.words
        return ("True", "False") if self.parse is flag else re.findall(r'"([^"]+)"', self.doc)

    @property
    def kept(self) -> bool:
        """True if a resume may take it from what the nodes have recorded about the run before."""
        return self.name not in NOT_KEPT


#: The settings that decide what runs on the nodes or on this machine, or whom it trusts.
NOT_KEPT: Final = frozenset(
    {
        *("HOSTS", "ROOT_DIR", "SHARDS", "PYTHON", "TRAINER_COMMAND", "PSERVER_COMMAND", "ENV", "LD_LIBRARY_PATH"),
        *("PS_SECURITY", "VIA", "SSH_CONFIG", "IDENTITY_FILE", "KNOWN_HOSTS", "STRICT_HOST_KEYS"),
        *("BEFORE_START", "AFTER_END", "SBATCH"),
    }
)
#: Settings of earlier versions, which may stay in a conf.py and have no effect, each with what replaces it.
RETIRED: Final = {
    "KEEP_CONNECTIONS_S": "to keep connections open, use ssh as the carrier, with ControlPersist: see docs/carriers.md"
}
#: The values of WIRE for the outer mode.
QUANTIZED: Final = ("int8", "int4")
#: The settings of which nodes learn nothing, not even in what a run records.
NOT_RECORDED: Final = frozenset({"BEFORE_START", "AFTER_END"})


def _listed(value: object) -> object:
    """Return HOSTS unchanged; `read_hosts` checks it as a whole."""
    return value


TABLE: Final[tuple[Setting, ...]] = (
    Setting("HOSTS", _listed, (), '"user@host:port" (user and port are optional), or Host(...); required'),
    Setting(
        "ROOT_DIR",
        remote_root,
        "~/clusterctl",
        "the directory for jobs on every node; ~ is that node's home directory, {node} the node's id",
    ),
    # what runs
    Setting("PYTHON", text, "python3", "the Python interpreter on the nodes; replaces a leading `python` in commands"),
    Setting("TRAINER_COMMAND", command, "python train.py", "the command of every trainer, run in the job directory"),
    Setting(
        "PSERVER_COMMAND", optional(command), None, "the command of every pserver; None: the built-in parameter server"
    ),
    Setting("ENV", environment, {}, "environment variables for every process of the job", secret=True),
    Setting("LD_LIBRARY_PATH", optional(text), None, "the shared library search path of every process"),
    Setting("USE_GPU", flag, False, "passed on to the training program", old="PADDLE_USE_GPU"),
    Setting("SHARDS", globs, (), "patterns of files to divide among the trainers' nodes, such as train.txt-*"),
    # where it runs
    Setting(
        "PSERVERS", optional(some_hosts), None, "the hosts with pservers: a number (the first N) or a list; None: all"
    ),
    Setting("TRAINERS", optional(some_hosts), None, "the hosts with trainers, in the same form"),
    Setting("PSERVERS_PER_NODE", whole(1), 1, "the number of pservers on each host that has any"),
    Setting("TRAINERS_PER_NODE", whole(1), 1, "the number of trainers on each host that has any"),
    Setting(
        "TRAINER_THREADS",
        whole(1),
        1,
        "the number of threads of ps.parallel in each trainer; BLAS threads are divided by it",
    ),
    Setting("REPORT", flag, False, "True makes an attached start write a report at its end"),
    Setting("BEFORE_START", optional(text), None, "the task of tasks.py that start runs first, on this machine"),
    Setting("AFTER_END", optional(text), None, "the task that an attached start runs here once the run has ended"),
    Setting("SBATCH", strings, (), "more options of sbatch for submit --to slurm, such as --partition=gpu"),
    Setting("EXCLUSIVE", flag, False, "True refuses to start on nodes where another job is running"),
    # network between the nodes
    Setting(
        "NIC",
        optional(interface),
        None,
        "the network interface between nodes, or its subnet; None: that of SSH, else of the default route",
        old="PADDLE_NIC",
    ),
    Setting(
        "PORT", whole(1, 65535), 7164, "the first port of a pserver; if taken, the next free one", old="PADDLE_PORT"
    ),
    Setting("PORTS_NUM", whole(1, 1000), 1, "ports per pserver for dense tables", old="PADDLE_PORTS_NUM"),
    Setting(
        "PORTS_NUM_FOR_SPARSE",
        whole(0, 1000),
        1,
        "ports per pserver for sparse tables",
        old="PADDLE_PORTS_NUM_FOR_SPARSE",
    ),
    Setting("PS_SECURITY", choice("curve", "none"), "curve", 'use "none" only on a trusted network'),
    Setting("RELAY", choice("auto", "always", "never"), "auto", "whether nodes forward the workspace to each other"),
    # how the nodes are reached
    Setting(
        "VIA",
        parse_via,
        "ssh",
        'what carries commands to the nodes: "ssh", "local", or a tuple of words with {host}',
    ),
    Setting("SSH_CONFIG", optional(local_path), None, "the SSH configuration file; None: ~/.ssh/config"),
    Setting("IDENTITY_FILE", optional(local_path), None, "the private key; None: ssh-agent and the usual ~/.ssh keys"),
    Setting("KNOWN_HOSTS", optional(local_path), None, "the file of known host keys; None: ~/.ssh/known_hosts"),
    Setting("STRICT_HOST_KEYS", flag, True, "False connects to hosts with unknown keys"),
    # training
    Setting("MODE", Mode.parse, "sync", '"sync", "async", "half-async", "ssp(4)" or "geo(25)"'),
    Setting("SEED", whole(0, 2**63 - 1), 0, "the seed for initial values and for the readers' random numbers"),
    Setting(
        "ENGINE",
        choice("clusterctl", "none", "paddle", "torch", "dmlc", "tensorflow", "mpi"),
        "clusterctl",
        'the variables that programs get: "clusterctl", "paddle", "torch", "mpi", "dmlc", "tensorflow" or "none"',
    ),
    Setting(
        "WIRE",
        choice("float32", "float16", *QUANTIZED),
        "float32",
        'the number format on the network: "float32", "float16", or for the outer mode "int8" or "int4"',
    ),
    Setting("KEY_CACHE", flag, False, "cache lists of ids on both sides"),
    # checkpoints
    Setting("SAVE_EVERY", SaveInterval.parse, "1 pass", '"1 pass", "500 steps" or "600 s"; a bare number means steps'),
    Setting(
        "SAVE_MODEL_EVERY",
        optional(SaveInterval.parse),
        "1 pass",
        "how often to save a model to output/, as SAVE_EVERY; None: only the last one",
    ),
    Setting("KEEP", whole(1), 3, "how many checkpoints to keep"),
    Setting("KEEP_MODELS", count_or_all, 10, 'how many models to keep in output/, or "all"'),
    Setting(
        "COPIES", whole(1), 2, "on how many nodes each piece of a model or checkpoint is, with the one that wrote it"
    ),
    Setting(
        "MODEL_ON_LEAD_MB", whole(0), 2000, "merge the newest model on the first node, unless it is larger; 0: never"
    ),
    Setting("KEEP_BEST", optional(Best.parse), None, 'also keep the best one by a metric, such as "auc:max"'),
    # failures
    Setting("HEARTBEAT_S", seconds(0.05), 1, "the interval between heartbeats of a node"),
    Setting("NODE_GRACE_S", seconds(1), 30, "how long a node may be silent before it counts as lost"),
    Setting("GRACE_S", seconds(0), 10, "how long a process may take to exit before it is killed"),
    Setting(
        "RESTARTS",
        Restarts.parse,
        3,
        'how many times a process may restart within an hour, or {"pserver": 1, "trainer": 5} (0 for other engines)',
    ),
    Setting(
        "ON_TRAINER_LOSS",
        choice("fail", "shrink", "wait"),
        "fail",
        '"fail", "shrink" or "wait", once RESTARTS are used up',
    ),
    Setting("STALL_S", seconds(1), 600, "how long a process may go without a step before it counts as stalled"),
    Setting(
        "ON_STALL",
        choice("warn", "fail"),
        "warn",
        'what to do about a stall: "warn", or "fail", which kills the process and counts as a failure',
    ),
    Setting(
        "ON_NAN",
        choice("warn", "fail", "skip"),
        "warn",
        'what to do if a loss or gradient is not finite: "warn", "fail", or "skip", which skips the batch',
    ),
    Setting("TIME_LIMIT_S", optional(seconds(1)), None, "the time limit of a run"),
    Setting("MEMORY_LIMIT_MB", optional(whole(1)), None, "the address space limit of each process"),
    Setting("OPEN_FILES", optional(whole(64)), None, "the limit of open files of each process"),
)

BY_SPELLING: Final[dict[str, Setting]] = {name: setting for setting in TABLE for name in setting.spellings}

#: The settings that a run cannot change, and why.
DECIDED = {
    "HOSTS": "the job was dispatched to the hosts in conf.py, and status, logs and stop look for it there",
    "ROOT_DIR": "the job was dispatched to that of conf.py, and status, logs and stop look for it there",
    "SHARDS": "dispatch has already divided the data among the nodes",
}


def choosable() -> list[Setting]:
    """Return the settings that a run can change."""
    return [setting for setting in TABLE if setting.name not in DECIDED]


def choose(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the text of each setting, by the spelling given; the last one counts. Raises UsageError for DECIDED."""
    chosen: dict[str, str] = {}
    for name, value in pairs:
        setting = BY_SPELLING.get(name)
        key = setting.name if setting else name
        if key in DECIDED:
            hint = f"change {key} in conf.py, then dispatch again"
            raise UsageError(f"--set {name} is not possible: {DECIDED[key]}", hint=hint)
        for spelling in setting.spellings if setting else ():
            chosen.pop(spelling, None)
        chosen[name] = value
    return chosen
