"""The script that sbatch runs for a job: readable, and the same for the same values. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from clusterctl.errors import UsageError

#: The name of a job's run is this and the id of the job.
RUN_PREFIX = "slurm-"
#: How long before its time limit a job that may be requeued hears of it.
NOTICE_S = 120
#: How long it waits for a checkpoint then, and for the command that asks for it, even if that hangs. The rest is for
#: Slurm, which looks at limits twice a minute.
SAVE_S, MOST_S = 60, 75
#: The shortest time limit with which an attempt gets further than the one before.
SHORTEST_S = 600
#: The options that the script needs for itself.
OURS = ("--job-name", "-J", "--open-mode", "--signal")
_TIME = r"\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d+|\d+-\d+:\d\d|\d+-\d+:\d\d:\d\d"

_ONCE = """\
exec {start}
"""
# Traps of a shell wait for the command in front; so the run is in the background, and USR1 interrupts `wait`.
_REQUEUED = """\
# {notice_s} s before its time limit the job is queued again. It then resumes from a checkpoint that is made now,
# or from the newest one if that is not complete within {save_s} s.
requeue() {{
  again=yes
  timeout {most_s} {save}
  if [ "$?" -eq 4 ]; then
    return  # the run is over
  fi
  scontrol requeue "$SLURM_JOB_ID" || echo "the run goes on to the time limit of the job"
}}
trap requeue USR1
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ]; then
  {resume} &
else
  {start} &
fi
run=$!
while :; do
  again=
  wait "$run"
  code=$?
  if [ -z "$again" ] || [ "$code" -le 128 ]; then
    exit "$code"
  fi
done
"""


@dataclass(frozen=True)
class ScriptOptions:
    """What the script is made of.

    `name` is that of the Slurm job. `directory` is where the commands run, `output` the file for what they print; a
    requeued job appends to it. `start` and `resume` are the commands, attached, so that the script ends with
    the exit code of the run, and `save` the one that makes a checkpoint; it exits with 4 if the run is over. RUN among
    their words stands for a name that is this Slurm job's own. `time` is in one of Slurm's forms, such as 2:00:00; None
    leaves it to the partition. With `outlives_nodes`, the job goes on when Slurm loses a node, unless it is the one of
    the script. `options` are more options of sbatch, the SBATCH setting; they override `nodes` and `time`. `opening`
    are the first lines of the script, for sh.
    """

    RUN: ClassVar[str] = f"{RUN_PREFIX}$SLURM_JOB_ID"

    name: str
    directory: str
    output: str
    start: Sequence[str]
    resume: Sequence[str]
    save: Sequence[str]
    nodes: int | None = None
    time: str | None = None
    requeue: bool = False
    outlives_nodes: bool = False
    options: Sequence[str] = ()
    opening: str = ""


def script(submission: ScriptOptions) -> str:
    """Return the text of the script. Raises UsageError for options that sbatch would take for something else."""
    _check(submission)
    body = _REQUEUED if submission.requeue else _ONCE
    commands = {name: _joined(getattr(submission, name)) for name in ("start", "resume", "save")}
    return (
        "#!/bin/sh\n"
        "# Written by clusterctl for sbatch. It ends with the exit code of the run.\n"
        + "".join(f"#SBATCH {_quoted(option)}\n" for option in _options(submission))
        + f"\n{submission.opening}cd {shlex.quote(submission.directory)} || exit\n"
        + body.format(notice_s=NOTICE_S, save_s=SAVE_S, most_s=MOST_S, **commands)
    )


def _joined(words: Sequence[str]) -> str:
    return " ".join(f'"{word}"' if word == ScriptOptions.RUN else shlex.quote(word) for word in words)


def _options(submission: ScriptOptions) -> list[str]:
    # By default the output of each attempt would replace that of the one before.
    options = [f"--job-name={submission.name}", f"--output={submission.output}", "--open-mode=append"]
    if submission.nodes is not None:
        options.append(f"--nodes={submission.nodes}")
    if submission.time is not None:
        options.append(f"--time={submission.time}")
    if submission.requeue:
        options += ["--requeue", f"--signal=B:USR1@{NOTICE_S}"]
    else:
        options.append("--no-requeue")  # its script would start anew
    if submission.outlives_nodes:
        options.append("--no-kill")
    return [*options, *submission.options]


def _check(submission: ScriptOptions) -> None:
    if submission.nodes is not None and submission.nodes < 1:
        raise UsageError(f"--nodes {submission.nodes}: must be 1 or more")
    if submission.time is not None and not re.fullmatch(_TIME, submission.time):
        raise UsageError(f"--time {submission.time}: not a time", hint="write minutes, 2:00:00 or 1-12:00:00")
    if submission.requeue and submission.time is not None and seconds(submission.time) < SHORTEST_S:
        raise UsageError(
            f"--time {submission.time}: too short for --requeue, which saves {NOTICE_S} s before the end",
            hint=f"write at least {SHORTEST_S // 60} minutes",
        )
    for option in submission.options:
        if not option.startswith("-") or not option.isprintable() or re.match(r"-\w\s", option):
            raise UsageError(
                f"SBATCH: {option!r} is not an option of sbatch",
                hint='write each option as one string with =, such as "--partition=gpu"',
            )
        if option.partition("=")[0] in OURS or option.startswith("-J"):
            raise UsageError(f"SBATCH: {option!r} is set by clusterctl itself")
    for text in (submission.name, submission.directory, submission.output):
        if not text.isprintable():
            raise UsageError(f"{text!r} has characters that a script of sbatch cannot hold")


def seconds(time: str) -> int:
    """Return the seconds of a time in one of Slurm's forms, which do not all begin with the same unit."""
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    units = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    return int(days or 0) * 86400 + sum(part * unit for part, unit in zip(parts, units, strict=False))


def _quoted(option: str) -> str:
    """Quote an option for a line of #SBATCH, which knows double quotes and backslashes."""
    if re.fullmatch(r"[\w@%+=:,./-]+", option):
        return option
    return '"' + re.sub(r'(["\\])', r"\\\1", option) + '"'


#: The exit code of the script if a node does not see the mark.
BLIND = 4
#: What stands in a plan for what `look` returns.
PLANNED = "# submit adds lines here that look on each node for a mark that it leaves below ROOT_DIR.\n\n"
_LOOK = """\
# All nodes have to see the mark that submit has left below ROOT_DIR: the machine of submit reads there what they write.
mark={mark}
blind=$(srun --overlap -N "$SLURM_JOB_NUM_NODES" -n "$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \\
  sh -c '[ -e "$0" ] || echo "$SLURMD_NODENAME"' "$mark/submission.json") || exit
if [ -n "$blind" ]; then
  echo "ROOT_DIR is not shared:" $blind "cannot see $mark" | tee "$mark/refused" >&2
  exit {blind}
fi
ln -sfn "${{mark##*/}}" "${{mark%/*}}/$SLURM_JOB_ID"
"""


def look(mark: str) -> str:
    """Return the lines for sh that look for the record at this absolute path, and make it the record of the job."""
    return _LOOK.format(mark=shlex.quote(mark), blind=BLIND)
