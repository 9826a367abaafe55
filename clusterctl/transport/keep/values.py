"""Servers and errors as JSON, for the messages between a command and its helper."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from clusterctl import errors
from clusterctl.transport.target import Target

_ERRORS = {
    kind.__name__: kind
    for kind in (
        errors.ConfigError,
        errors.InterruptedRun,
        errors.NodeError,
        errors.RefusedError,
        errors.UnreachableError,
    )
}


def target_to_json(target: Target) -> dict[str, Any]:
    """Return a server with all that could make it another connection, also the state of its key files."""
    plain: dict[str, Any] = {
        field.name: getattr(target, field.name) for field in dataclasses.fields(target) if field.name != "via"
    }
    plain["identities"] = [str(path) for path in target.identities]
    plain["known_hosts"] = [str(path) for path in target.known_hosts]
    plain["stamp"] = repr([_state(path) for path in target.identities])
    return {**plain, "via": target_to_json(target.via) if target.via else None}


def target_from_json(value: dict[str, Any]) -> Target:
    via = value["via"]
    interval, count = value["alive"]
    return Target(
        **{
            **value,
            "identities": tuple(map(Path, value["identities"])),
            "known_hosts": tuple(map(Path, value["known_hosts"])),
            "alive": (interval, count),
            "via": target_from_json(via) if via else None,
        }
    )


def _state(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def error_to_json(error: errors.ClusterctlError) -> dict[str, Any]:
    kind = type(error).__name__
    return {
        "class": kind if kind in _ERRORS else "NodeError",
        "message": error.message,
        "hint": error.hint,
        "details": error.details,
    }


def error_from_json(value: dict[str, Any], label: str) -> errors.ClusterctlError:
    return _ERRORS[value["class"]](value["message"], node=label, hint=value["hint"], details=value["details"])
