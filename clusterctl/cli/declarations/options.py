"""Options and arguments that several commands have, or that are long."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clusterctl.cli import completion

JOB_HELP = "Job id or unique prefix, job directory, or name of a run. Default: the running job, else the last that ran."
RUN_HELP = f"{JOB_HELP[:-1]}. JOB/2 is its run 2."
JobArgument = Annotated[str | None, typer.Argument(metavar="JOB", help=JOB_HELP, autocompletion=completion.jobs)]
RunArgument = Annotated[str | None, typer.Argument(metavar="JOB", help=RUN_HELP, autocompletion=completion.runs)]
RoleOption = Annotated[
    str | None,
    typer.Option(
        "--role",
        metavar="TEXT",
        help="pserver, trainer or scheduler.",
        autocompletion=completion.one_of("pserver", "trainer", "scheduler"),
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="Override ENGINE in conf.py: torch, paddle, mpi, ...",
        autocompletion=completion.engines,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a setting of conf.py for this run. Repeatable.",
        autocompletion=completion.settings,
    ),
]
AdoptOption = Annotated[
    bool, typer.Option("--adopt", help="Run a directory that was deployed by hand, where it is below ROOT_DIR.")
]
ResumeOption = Annotated[
    bool,
    typer.Option("--resume", help="Resume the job (default: the last that ran) from its newest complete checkpoint."),
]
JobWorkspaceOption = Annotated[
    str | None,
    typer.Option(
        "--job_workspace",
        "--job-workspace",
        metavar="DIR",
        help="Dispatched job to start: directory or id.",
        autocompletion=completion.jobs,
    ),
]
TargetArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="WORKSPACE|JOB",
        help="An existing directory is dispatched and started; otherwise, a dispatched job.",
        autocompletion=completion.jobs,
    ),
]
RunOption = Annotated[
    int | None,
    typer.Option("--run", min=1, metavar="N", help="An earlier run of the job.", autocompletion=completion.run_numbers),
]
NameOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="TEXT",
        help="Name the run; commands accept it in place of JOB.",
        autocompletion=completion.run_names,
    ),
]
PackageOption = Annotated[
    Path | None,
    typer.Option(
        "--job_dispatch_package",
        "--job-dispatch-package",
        metavar="WORKSPACE",
        help="Dispatch this workspace, then start it.",
    ),
]
LeaveOutOption = Annotated[
    bool, typer.Option("--allow-partial", help="Leave out nodes that cannot be reached or fail.")
]
ResumeFromOption = Annotated[
    str | None,
    typer.Option(
        "--resume-from",
        metavar="JOB",
        help="Resume from the newest complete checkpoint of another job.",
        autocompletion=completion.jobs,
    ),
]
LoadOption = Annotated[
    str | None,
    typer.Option(
        "--load",
        metavar="JOB",
        help="Start with the newest complete model of a job, on the same nodes.",
        autocompletion=completion.jobs,
    ),
]
LoadRunOption = Annotated[
    int | None,
    typer.Option(
        "--load-run",
        min=1,
        metavar="N",
        help="The newest model of this run of it.",
        autocompletion=completion.run_numbers,
    ),
]
LoadTagOption = Annotated[
    str | None,
    typer.Option(
        "--load-tag", metavar="TEXT", help="This model of it instead of the newest.", autocompletion=completion.tags
    ),
]
FoldOption = Annotated[
    bool | None,
    typer.Option(
        "--fold/--no-fold",
        help="Wait for all nodes and show identical output once, or show lines as they arrive. Default: fold if "
        "all nodes finish within 2 s with less than 1 MB of output.",
    ),
]
ImageOption = Annotated[str | None, typer.Option("--image", metavar="IMAGE", help="Kubernetes: the image of the pods.")]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", help="Kubernetes: where the pods are made.")
]
StorageOption = Annotated[
    str | None, typer.Option("--storage", metavar="SIZE", help="Kubernetes: a disk for each pod, such as 10Gi.")
]
DeleteOption = Annotated[
    bool, typer.Option("--delete", help="Also delete the pods and disks that submit has made in Kubernetes.")
]
