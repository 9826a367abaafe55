"""An example of every kind of event, as nodes record it."""

from __future__ import annotations

from typing import Any

PROCESS = {"role": "trainer", "rank": 1, "attempt": 1}
CAUSE = {"kind": "exit", "message": "exited with code 1"}
RECORDED: dict[str, dict[str, Any]] = {
    "spawned": {"pid": 12},
    "ready": {"endpoint": "127.0.0.1:7164"},
    "step": {"step": 20, "pass": 1, "passes": 3, "loss": 0.5, "samples": 640, "samples_per_s": 99.5, "wait": 0.25},
    "pass": {"pass": 1, "step": 20, "passes": 3, "seconds": 1.5},
    "log": {"values": {"auc": 0.75}, "weight": 2.0, "step": 20, "pass": 1},
    "nan": {"message": "the loss is not finite", "what": "the loss", "action": "fail", "step": 2, "skipped": 0},
    "usage": {"cpu": 1.5, "memory": 1 << 30},
    "stalled": {"message": "no sign of life", "stalled_s": 600.0, "over": True, "halted": False},
    "exited": {"exit_code": 1, "stopping": False, "message": "exited with code 1", "tail": ["a", "b"], "reason": None},
    "restarting": {"message": "exited with code 1", "in_s": 1.0, "count": "restart 1 of 3", "exit_code": 1},
    "held": {"message": "exceeded RESTARTS"},
    "state_lost": {"message": "its state is gone"},
    "suspect": {"silent_s": 3.5, "message": "no heartbeat"},
    "lost": {"message": "no heartbeat for 30 s", "lost_node": 0, "waits": True},
    "rejoined": {"message": "it is a spare now"},
    "paused": {"paused_s": 20.0, "message": "did not run for 20 s"},
    "took_over": {"message": "took over", "rebooted": False, "seen": 3.5},
    "phase": {"phase": "stopping", "cause": CAUSE},
    "saved": {"tag": "pass-00001", "step": 40, "complete": True, "checkpoint": False},
    "copying": {"tag": "pass-00001", "limit_s": 30.0},
    "copied": {"tag": "pass-00001", "bytes": 1000, "in_s": 0.5, "checkpoint": True},
    "cut_dropped": {"message": "not saved", "trainers": [1, 2], "saves": ["model"]},
    "moved": {"from_node": 3},
    "resumed_by": {"message": "run 1 was lost: node0 is lost", "by": "me@here"},
    "rolled_back": {"step": 10, "epoch": 1, "whole": True, "processes": ["trainer0"], "tag": "step-000000010"},
    "standstill": {"message": "no step", "stalled_s": 5.0, "over": False},
    "warned": {"kind": "no_push", "message": "no trainer ever pushed"},
    "ended": {"state": "failed", "cause": CAUSE, "not_heard_of": [3]},
}
