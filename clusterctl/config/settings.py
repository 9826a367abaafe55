"""Every setting of conf.py, each declared by one field: its values, its default, its meaning, and where it goes."""

# ruff: noqa: RUF009 - `setting` returns a dataclasses.field

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from clusterctl.common.modes import Mode, SaveInterval
from clusterctl.config.carriers import parse_via
from clusterctl.config.declarations import Setting, Topic, by_place, setting, settings_in
from clusterctl.config.host_sources import HostSource
from clusterctl.config.hosts import Host, any_hosts, some_hosts
from clusterctl.config.parsers import (
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
from clusterctl.config.values import QUANTIZED, Best, Restarts, best_in_spec, models_in_spec

_DISPATCHED_THERE: Final = "status, logs and stop look for it there"
_DIVIDED: Final = "dispatch has already divided the data among the nodes"


@dataclass(frozen=True)
class Settings:
    """The settings of conf.py, one lower-case field each; `declarations.py` says what a field declares.

    Paths on this machine (`ssh_config`, `identity_file`, `known_hosts`, a host's `identity`) are absolute, with `~`
    expanded; paths on nodes (`root_dir`) keep their `~`. `hosts` is empty while a scheduler has not been asked for them
    (`hosts_from`). `source` is the conf.py, if there is one; `lines` maps a setting to its line there. `chosen` has the
    text of each setting of `start --set`, and `warnings` a line for each that no longer has an effect.
    """

    hosts: tuple[Host, ...] = setting(
        Topic.MACHINES,
        any_hosts,
        (),
        '`"user@host:port"` (user and port are optional), or `Host(...)`; required',
        "See [Hosts](#hosts)",
        fixed=f"the job was dispatched to the hosts in conf.py, and {_DISPATCHED_THERE}",
        kept=False,
    )
    root_dir: str = setting(
        Topic.MACHINES,
        remote_root,
        "~/clusterctl",
        "the directory for jobs on every node; `~` is that node's home directory, `{node}` the node's id",
        fixed=f"the job was dispatched to that of conf.py, and {_DISPATCHED_THERE}",
        kept=False,
    )
    python: str = setting(
        Topic.PROGRAMS,
        text,
        "python3",
        "the Python interpreter on the nodes; replaces a leading `python` in commands",
        "An environment that [setup](setup.md) made takes its place. `check` finds shims of pyenv that slow calls down",
        kept=False,
    )
    trainer_command: tuple[str, ...] = setting(
        Topic.PROGRAMS,
        command,
        "python train.py",
        "the command of every trainer, run in the job directory; a string or a list of words, without a shell",
        kept=False,
    )
    pserver_command: tuple[str, ...] | None = setting(
        Topic.PROGRAMS,
        optional(command),
        None,
        "the command of every pserver; `None`: the built-in parameter server",
        "With the engines `paddle` and `dmlc`, `None` means TRAINER_COMMAND; with others there are no pservers then",
        kept=False,
    )
    env: Mapping[str, str] = setting(
        Topic.PROGRAMS,
        environment,
        {},
        "environment variables for every process of the job",
        "Their values never appear in messages (`start --plan` does show them)",
        secret=True,
        kept=False,
    )
    ld_library_path: str | None = setting(
        Topic.RARE,
        optional(text),
        None,
        "the shared library search path of every process",
        kept=False,
        spec="ld_library_path",
    )
    use_gpu: bool = setting(
        Topic.RARE,
        flag,
        False,
        "passed on to the training program as `PADDLE_INIT_USE_GPU`",
        "It does not decide which [GPUs](#gpus) a trainer sees",
        old="PADDLE_USE_GPU",
        spec="use_gpu",
    )
    shards: tuple[str, ...] = setting(
        Topic.PROGRAMS,
        globs,
        (),
        "patterns of files to divide among the trainers' nodes, such as `train.txt-*`",
        "See [Shards](#shards)",
        fixed=_DIVIDED,
        kept=False,
    )
    shard_copies: int = setting(
        Topic.PROGRAMS,
        whole(1),
        1,
        "on how many nodes each shard is, with that of its trainer",
        "With `2`, a trainer whose node is lost [goes on elsewhere](#shards)",
        fixed=_DIVIDED,
    )
    pservers: int | tuple[str, ...] | None = setting(
        Topic.RARE,
        optional(some_hosts),
        None,
        "the hosts with pservers: a number (the first N) or a list; `None`: all",
        "Only hosts whose `roles` allow it count. 0 for programs that do not call `connect()`",
        spec="training.pservers",
    )
    trainers: int | tuple[str, ...] | None = setting(
        Topic.RARE,
        optional(some_hosts),
        None,
        "the hosts with trainers, in the same form",
        spec="training.trainers",
    )
    pservers_per_node: int = setting(
        Topic.RARE, whole(1), 1, "the number of pservers on each host that has any; `Host(pservers=)` overrides it"
    )
    trainers_per_node: int = setting(
        Topic.RARE, whole(1), 1, "the number of trainers on each host that has any; `Host(trainers=)` overrides it"
    )
    trainer_threads: int = setting(
        Topic.PROGRAMS,
        whole(1),
        1,
        "the number of threads of `ps.parallel` in each trainer; BLAS threads are divided by it",
        "`OMP_NUM_THREADS` and `OPENBLAS_NUM_THREADS` are a trainer's share of the cores divided by it, unless ENV "
        "sets them. Passed on as `PADDLE_INIT_TRAINER_COUNT`. See [threads](runtime.md#threads)",
        spec="training.trainer_threads",
    )
    sbatch: tuple[str, ...] = setting(
        Topic.RARE,
        strings,
        (),
        "more options of sbatch for `submit --to slurm`, such as `--partition=gpu`",
        "Each is in one string, such as `--ntasks-per-node=4`: see [submit](commands.md#submit)",
        kept=False,
    )
    exclusive: bool = setting(
        Topic.RARE,
        flag,
        False,
        "`True` refuses to start on nodes where another job is running",
        "`False` makes it a warning. Jobs of other accounts are known as far as their ports show them",
    )
    report: bool = setting(
        Topic.PROGRAMS,
        flag,
        False,
        "`True` makes an attached start write a report at its end",
        "The [report](commands.md#report) is `JOB...-runN.html` here. If that fails, the exit code stays",
    )
    before_start: str | None = setting(
        Topic.PROGRAMS,
        optional(text),
        None,
        "the task of tasks.py that start runs first, on this machine; if it fails, nothing is started",
        "See [tasks before and after a run](commands.md#tasks-before-and-after-a-run)",
        kept=False,
        recorded=False,
    )
    after_end: str | None = setting(
        Topic.PROGRAMS,
        optional(text),
        None,
        "the task that an attached start runs here once the run has ended",
        "It gets the state, job, run and exit code",
        kept=False,
        recorded=False,
    )
    nic: str | None = setting(
        Topic.NETWORK,
        optional(interface),
        None,
        "the network interface between nodes, or its subnet; `None`: that of SSH, else of the default route",
        "For example `eth0` or `10.0.0.0/24`: see [Addresses](#addresses)",
        old="PADDLE_NIC",
    )
    port: int = setting(
        Topic.NETWORK,
        whole(1, 65535),
        7164,
        "the first port of a pserver; if taken, the next free one",
        "The last one tried is PORT+999. Pservers of PSERVER_COMMAND use the first one that is free on all their nodes",
        old="PADDLE_PORT",
        spec="ports.port",
    )
    ports_num: int = setting(
        Topic.RARE,
        whole(1, 1000),
        1,
        "ports per pserver for dense tables",
        "Each has its own thread; the program gets the number as `PADDLE_INIT_PORTS_NUM`",
        old="PADDLE_PORTS_NUM",
        spec="ports.ports_num",
    )
    ports_num_for_sparse: int = setting(
        Topic.RARE,
        whole(0, 1000),
        1,
        "ports per pserver for sparse tables",
        "With 0 they share the dense ports. Passed on as `PADDLE_INIT_PORTS_NUM_FOR_SPARSE`",
        old="PADDLE_PORTS_NUM_FOR_SPARSE",
        spec="ports.ports_num_for_sparse",
    )
    ssh_config: Path | None = setting(
        Topic.RARE,
        optional(local_path),
        None,
        "the SSH configuration file; `None`: `~/.ssh/config` and the system's",
        kept=False,
    )
    identity_file: Path | None = setting(
        Topic.NETWORK,
        optional(local_path),
        None,
        "the private key; `None`: ssh-agent and the usual `~/.ssh` keys",
        kept=False,
    )
    known_hosts: Path | None = setting(
        Topic.RARE,
        optional(local_path),
        None,
        "the file of known host keys; `None`: `~/.ssh/known_hosts` and the system's",
        kept=False,
    )
    strict_host_keys: bool = setting(
        Topic.RARE,
        flag,
        True,
        "`False` connects to hosts with unknown keys",
        "It is safer to record them with `clusterctl trust`",
        kept=False,
    )
    mode: Mode = setting(
        Topic.TRAINING,
        Mode.parse,
        "sync",
        'how pushes become updates: `"sync"`, `"async"`, `"half-async"`, `"ssp(4)"` or `"geo(25)"`, with any number',
        "See [modes](runtime.md#modes)",
        spec="training.mode",
        as_spec=str,
    )
    seed: int = setting(
        Topic.TRAINING,
        whole(0, 2**63 - 1),
        0,
        "the seed for initial values and for the readers' random numbers",
        spec="training.seed",
    )
    engine: str = setting(
        Topic.TRAINING,
        choice("clusterctl", "none", "paddle", "torch", "dmlc", "tensorflow", "mpi"),
        "clusterctl",
        'the variables that programs get: `"clusterctl"`, `"paddle"`, `"torch"`, `"mpi"`, `"dmlc"`, `"tensorflow"` or '
        '`"none"`',
        "See [engines](engines.md)",
        spec="training.engine",
    )
    ps_security: str = setting(
        Topic.NETWORK,
        choice("curve", "none"),
        "curve",
        'use `"none"` only on a trusted network; `"curve"` encrypts and admits only the processes of the run',
        spec="training.security",
    )
    relay: str = setting(
        Topic.RARE,
        choice("auto", "always", "never"),
        "auto",
        'whether nodes forward the workspace to each other: `"auto"`, `"always"` or `"never"`',
        "This machine then sends each byte of it, and of the packages of `setup`, about once. `auto` does so with 3 "
        "nodes or more and at least 8 MB. A node that cannot be reached this way gets its files directly",
    )
    via: str | tuple[str, ...] = setting(
        Topic.NETWORK,
        parse_via,
        "ssh",
        'what carries commands to the nodes: `"ssh"`, `"local"`, or a tuple of words with `{host}`',
        'With `local` this machine is the node. For containers it is `("docker", "exec", "-i", "{host}")`: see '
        "[carriers](carriers.md)",
        kept=False,
    )
    heartbeat_s: float = setting(
        Topic.RARE, seconds(0.05), 1, "the interval between heartbeats of a node", spec="timing.heartbeat_s"
    )
    node_grace_s: float = setting(
        Topic.RARE, seconds(1), 30, "how long a node may be silent before it counts as lost", spec="timing.node_grace_s"
    )
    grace_s: float = setting(
        Topic.RARE, seconds(0), 10, "how long a process may take to exit after TERM, before KILL", spec="timing.grace_s"
    )
    restarts: Restarts = setting(
        Topic.FAILURES,
        Restarts.parse,
        3,
        'how many times a process may restart within an hour, or `{"pserver": 1, "trainer": 5}` (0 for other engines)',
        "See [failures](runtime.md#failures)",
        spec="failures.restarts",
        as_spec=Restarts._asdict,
    )
    on_trainer_loss: str = setting(
        Topic.FAILURES,
        choice("fail", "shrink", "wait"),
        "fail",
        'what to do once the RESTARTS of a trainer are used up: `"fail"`, `"shrink"` or `"wait"`',
        "`shrink` continues without it, and `wait` waits for `start --rejoin`. See [lost nodes](#lost-nodes)",
        spec="failures.on_trainer_loss",
    )
    on_node_loss: str | None = setting(
        Topic.FAILURES,
        optional(choice("move", "wait", "fail")),
        None,
        'what to do if a node is lost: `"move"` its processes to other nodes, `"wait"` for it, or `"fail"`',
        "`None`: see [lost nodes](#lost-nodes)",
    )
    resumes: int = setting(
        Topic.FAILURES,
        whole(0),
        3,
        "how often within an hour a run that lost its first node is resumed, if processes move",
        "By an attached `start` or by `clusterctl keep`. See [the keeper](runtime.md#the-keeper)",
    )
    save_every: SaveInterval = setting(
        Topic.CHECKPOINTS,
        SaveInterval.parse,
        "1 pass",
        'how often to save a checkpoint: `"1 pass"`, `"500 steps"` or `"600 s"`; a bare number means steps',
        "See [checkpoints](runtime.md#checkpoints)",
        spec="saving.save_every",
    )
    save_model_every: SaveInterval | None = setting(
        Topic.CHECKPOINTS,
        optional(SaveInterval.parse),
        "1 pass",
        "how often to save a model to `output/`, as SAVE_EVERY; `None`: only the last one",
        "The last values are saved at the end of the run in any case: see [models](runtime.md#what-is-saved)",
        spec="saving.save_model_every",
        as_spec=models_in_spec,
    )
    keep: int = setting(
        Topic.CHECKPOINTS,
        whole(1),
        3,
        "how many checkpoints to keep",
        "Older ones are deleted on all nodes, but the newest copied one (`COPIES`) stays until a newer one is copied",
        spec="saving.keep",
    )
    keep_models: int | None = setting(
        Topic.CHECKPOINTS,
        count_or_all,
        10,
        'how many models to keep in `output/`, or `"all"`',
        "They are the newest complete ones, the newest copied one (`COPIES`), and the one that goes with the best "
        "checkpoint. What `ps.save` made is never removed",
        spec="saving.keep_models",
    )
    copies: int = setting(
        Topic.CHECKPOINTS,
        whole(1),
        2,
        "on how many nodes each piece of a model or checkpoint is, with the one that wrote it",
        "`1` makes no copies; see [what survives](reliability.md#a-node-that-is-lost-for-good)",
    )
    model_on_lead_mb: int = setting(
        Topic.RARE,
        whole(0),
        2000,
        "merge the newest model on the first node, unless it is larger; 0: never",
        "It becomes `output/TAG/model.safetensors`. The limit is that of its pieces, in megabytes",
        spec="saving.model_on_lead_mb",
    )
    keep_best: Best | None = setting(
        Topic.CHECKPOINTS,
        optional(Best.parse),
        None,
        'also keep the best checkpoint by a metric, such as `"auc:max"`',
        "The metric is any number that the program logs with `ps.log`; the best one is its `max` or its `min`",
        spec="saving.keep_best",
        as_spec=best_in_spec,
    )
    stall_s: float = setting(
        Topic.FAILURES,
        seconds(1),
        600,
        "how long a process may go without a step before it counts as stalled",
        "Make it longer than loading data or evaluating takes between two steps. See [hangs](runtime.md#hangs)",
        spec="failures.stall_s",
    )
    on_stall: str = setting(
        Topic.RARE,
        choice("warn", "fail"),
        "warn",
        'what to do about a stall: `"warn"`, or `"fail"`, which kills the process and counts as a failure',
        "Either way the stacks of its threads go to its log. If all trainers wait for each other, `fail` ends the run",
        spec="failures.on_stall",
    )
    on_nan: str = setting(
        Topic.FAILURES,
        choice("warn", "fail", "skip"),
        "warn",
        'what to do if a loss or gradient is not finite: `"warn"`, `"fail"`, or `"skip"`, which skips the batch',
        "See [numbers that are not finite](runtime.md#numbers-that-are-not-finite)",
        spec="failures.on_nan",
    )
    time_limit_s: float | None = setting(
        Topic.FAILURES,
        optional(seconds(1)),
        None,
        "the time limit of a run",
        "A run that exceeds it fails, and can be resumed",
        spec="failures.time_limit_s",
    )
    memory_limit_mb: int | None = setting(
        Topic.RARE,
        optional(whole(1)),
        None,
        "the address space limit of each process, in MB; `None`: no limit from clusterctl",
        "This is [RLIMIT_AS](runtime.md#limits), in millions of bytes",
        spec="limits.memory_limit_mb",
    )
    open_files: int | None = setting(
        Topic.RARE,
        optional(whole(64)),
        None,
        "the limit of open files of each process; `None`: as many as the node allows, up to 65,536",
        "This is RLIMIT_NOFILE, for files and sockets; at most what the node allows (`ulimit -Hn`)",
        spec="limits.open_files",
    )
    wire: str = setting(
        Topic.TRAINING,
        choice("float32", "float16", *QUANTIZED),
        "float32",
        'the number format on the network: `"float32"`, `"float16"`, or for the outer mode `"int8"` or `"int4"`',
        "`float16` halves the bytes by rounding; numbers beyond 65,504 become infinite, see ON_NAN. `int8` and `int4`, "
        "in sync mode, are for the tables of the outer mode; see [the wire](runtime.md#the-wire)",
        spec="training.wire",
    )
    key_cache: bool = setting(
        Topic.RARE,
        flag,
        False,
        "cache lists of ids on both sides",
        "A repeated list is not sent again",
        spec="training.key_cache",
    )
    hosts_from: HostSource | None = None
    source: Path | None = None
    lines: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    chosen: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    warnings: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def place(self, name: str) -> str:
        """Return the location of the setting `name` as a prefix for messages, `conf.py:12: `, or "" without a file."""
        if name in self.chosen:
            return f"--set {name}: "
        if self.source is None:
            return ""
        line = self.lines.get(name)
        return f"{self.source}: " if line is None else f"{self.source}:{line}: "

    def in_spec(self, part: str = "") -> dict[str, Any]:
        """Return the values for a part of the spec of a run, such as `timing`, or for its top, by their names there."""
        return {key: one.as_spec(getattr(self, one.field)) for key, one in IN_SPEC[part].items()}


TABLE: Final[tuple[Setting, ...]] = settings_in(Settings)
BY_SPELLING: Final[dict[str, Setting]] = {name: one for one in TABLE for name in one.spellings}
IN_SPEC: Final = by_place(TABLE)
