"""Turns a dispatched job into a run: a pure plan, the run's keys, and the start on all nodes."""

from clusterctl.launch.plan import LaunchPlan, plan
from clusterctl.launch.resume import Resume, choose
from clusterctl.launch.start import Run, start

__all__ = ["LaunchPlan", "Resume", "Run", "choose", "plan", "start"]
