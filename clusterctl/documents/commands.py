"""The documents of each command. A document also has the keys of `Printed`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterctl.common.answers import SaveAnswer
from clusterctl.documents import jobs, local, nodes

#: The declarations of the documents that a command can print with `--json`. `start` also prints the events of the run.
COMMANDS: Mapping[str, tuple[Any, ...]] = {
    "init": (local.InitDocument,),
    "fake up": (local.FakeUpDocument,),
    "fake status": (local.FakeStatusDocument,),
    "fake kill": (local.FakeFaultDocument,),
    "fake pause": (local.FakeFaultDocument,),
    "fake cut": (local.FakeFaultDocument,),
    "fake heal": (local.FakeFaultDocument,),
    "fake down": (local.FakeDownDocument,),
    "trust": (nodes.TrustDocument,),
    "check": (nodes.CheckDocument,),
    "setup": (nodes.SetupDocument,),
    "dispatch": (nodes.DispatchDocument, nodes.DispatchPlan),
    "split": (local.SplitDocument,),
    "jobs": (jobs.JobsDocument,),
    "start": (jobs.StartPlan, jobs.DetachedStart, jobs.StartDocument, jobs.RejoinDocument),
    "keep": (jobs.KeptJob, jobs.KeepersDocument),
    "submit": (local.SubmissionDocument, local.ManifestDocument, jobs.DetachedStart),
    "status": (jobs.StatusDocument, jobs.RunningJobs),
    "logs": (jobs.LogLineDocument,),
    "why": (jobs.WhyDocument, jobs.WhyNoRun),
    "report": (jobs.ReportDocument,),
    "diff": (jobs.DiffDocument,),
    "save": (SaveAnswer,),
    "stop": (jobs.StopDocument, local.DeletedDocument),
    "collect": (jobs.CollectDocument,),
    "export": (jobs.ExportDocument, local.MetricsDocument),
    "metrics": (local.MetricsDocument,),
    "exec": (nodes.ExecDocument,),
    "task": (nodes.TaskDocument, nodes.TaskListDocument),
    "prune": (nodes.PruneDocument,),
    "demo": (local.DemoDocument,),
    "completion": (local.CompletionDocument,),
    "help": (local.HelpDocument,),
    "disconnect": (local.DisconnectDocument,),
}
