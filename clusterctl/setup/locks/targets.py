"""A kind of node in the terms of Python's packaging: the tags of wheels, and the values of markers."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.markers import Environment
from packaging.tags import Tag, compatible_tags, cpython_tags, generic_tags

from clusterctl.setup.platforms import Platform

NAMES = {"cp": ("cpython", "CPython"), "pp": ("pypy", "PyPy")}


@dataclass(frozen=True)
class WheelTarget:
    """`tags` are those of wheels that run there, the best one first; `markers` has the values of markers."""

    name: str
    tags: list[Tag]
    markers: Environment

    @classmethod
    def of(cls, platform: Platform) -> WheelTarget:
        return cls(str(platform.kind), list(dict.fromkeys(_tags(platform))), _markers(platform))


def _tags(platform: Platform) -> list[Tag]:
    kind, platforms = platform.kind, platform.tags()
    major, minor = (int(part) for part in kind.python.split(".")[:2])
    interpreter = f"{kind.implementation}{major}{minor}"
    if kind.implementation == "cp":
        specific = list(cpython_tags((major, minor), [f"cp{major}{minor}"], platforms))
    else:
        abi = f"pypy{major}{minor}_pp73" if kind.implementation == "pp" else "none"
        specific = list(generic_tags(interpreter, [abi], platforms))
    return [*specific, *compatible_tags((major, minor), interpreter, platforms)]


def _markers(platform: Platform) -> Environment:
    """Return the values of markers there. The kernel's release is unknown: nodes of a kind may differ in it."""
    kind = platform.kind
    name, title = NAMES.get(kind.implementation, (kind.implementation, kind.implementation))
    return {
        "implementation_name": name,
        "implementation_version": platform.python,
        "os_name": "posix",
        "platform_machine": kind.machine,
        "platform_python_implementation": title,
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": platform.python,
        "python_version": kind.python,
        "sys_platform": "linux",
    }
