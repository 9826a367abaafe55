"""Unpack a wheel into an environment without pip (PEP 427)."""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import os
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from clusterctl.common.errors import AgentError
from clusterctl.common.tree import COPY_BYTES

SHEBANG_CHARS = 127  # every Linux reads this much of the first line


class InstallTarget(NamedTuple):
    """The directories of an environment. `python` is the interpreter of its scripts, at its final path."""

    prefix: Path
    site: Path
    python: str


def unpack(path: Path, target: InstallTarget) -> None:
    """Install a wheel. Raises `AgentError` if it is damaged or would write outside the environment."""
    with _opened(path) as archive:
        info = _find_info(archive)
        expected = _recorded(archive, info)
        for member in _checked_members(archive, info, expected):
            _extract(archive, member, expected, target)
        _write_entry_points(archive, info, target)
    (target.site / info / "INSTALLER").write_text("clusterctl\n")


def check_names(path: Path) -> None:
    """Raise `AgentError` if a wheel has a file or script outside the environment, or a file that its RECORD lacks."""
    with _opened(path) as archive:
        info = _find_info(archive)
        for _ in (*_checked_members(archive, info, _recorded(archive, info)), *_entry_points(archive, info)):
            pass


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError, configparser.Error) as exc:
        raise AgentError(f"{path.name} is not a valid wheel: {exc}") from exc


def _find_info(archive: zipfile.ZipFile) -> str:
    """Return the name of the .dist-info directory."""
    tops = {name.split("/")[0] for name in archive.namelist() if "/" in name}
    matches = [top for top in tops if top.endswith(".dist-info")]
    if len(matches) != 1:
        raise ValueError(f"{len(matches)} dist-info directories")
    return matches[0]


def _recorded(archive: zipfile.ZipFile, info: str) -> dict[str, str]:
    """Return the hashes in RECORD by file name, in its notation: sha256=BASE64."""
    rows = csv.reader(archive.read(f"{info}/RECORD").decode().splitlines())
    return {row[0]: row[1] for row in rows if row}


def _checked_members(archive: zipfile.ZipFile, info: str, expected: dict[str, str]) -> Iterator[zipfile.ZipInfo]:
    """Yield the files of a wheel. Raises ValueError for one with a bad name, or one that its RECORD lacks."""
    unsigned = (f"{info}/RECORD", f"{info}/RECORD.jws", f"{info}/RECORD.p7s")
    for member in archive.infolist():
        name = member.filename
        if name.startswith("/") or "\\" in name or ".." in name.split("/"):
            raise ValueError(f"{name} would be outside the environment")
        if member.is_dir():
            continue
        if name not in expected and name not in unsigned:
            raise ValueError(f"{name} is not in its RECORD")
        yield member


def _extract(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, expected: dict[str, str], target: InstallTarget
) -> None:
    name = member.filename
    path = _target(name, target)
    path.parent.mkdir(parents=True, exist_ok=True)
    script = ".data/scripts/" in name
    with archive.open(member) as source, path.open("wb") as f:
        digest = _copy(source, f, target.python if script else None)  # type: ignore[arg-type]
    if expected.get(name, "").startswith("sha256=") and expected[name] != digest:
        raise ValueError(f"{name} does not match its RECORD")
    if script or (member.external_attr >> 16) & 0o111:
        path.chmod(0o755)


def _target(name: str, target: InstallTarget) -> Path:
    top, _, rest = name.partition("/")
    if not top.endswith(".data"):
        return target.site / name
    scheme, _, rest = rest.partition("/")
    tops = {
        "purelib": target.site,
        "platlib": target.site,
        "scripts": target.prefix / "bin",
        "data": target.prefix,
        "headers": target.prefix / "include" / top.split("-")[0],
    }
    return tops[scheme] / rest


def _copy(source: BinaryIO, target: BinaryIO, python: str | None) -> str:
    """Copy a file, with the interpreter in place of a script's `#!python`. Return the hash of the bytes read."""
    digest = hashlib.sha256()
    first = source.readline() if python else b""
    digest.update(first)
    target.write(shebang(python) if python and first.startswith(b"#!python") else first)
    while data := source.read(COPY_BYTES):
        digest.update(data)
        target.write(data)
    return "sha256=" + base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")


def shebang(python: str) -> bytes:
    """Return the first line of a script, or two lines for both /bin/sh and python if the kernel cannot read one."""
    line = b"#!" + os.fsencode(python) + b"\n"
    if len(line) <= SHEBANG_CHARS and b" " not in line:
        return line
    quoted = re.sub(rb'(["$`\\])', rb"\\\1", os.fsencode(python))
    return b"#!/bin/sh\n'''exec' \"" + quoted + b'" "$0" "$@"\n\' \'\'\'\n'


def _write_entry_points(archive: zipfile.ZipFile, info: str, target: InstallTarget) -> None:
    for name, module, function in _entry_points(archive, info):
        script = target.prefix / "bin" / name
        body = f"import sys\nfrom {module} import {function.split('.')[0]}\nsys.exit({function}())\n"
        script.write_bytes(shebang(target.python) + body.encode())
        script.chmod(0o755)


def _entry_points(archive: zipfile.ZipFile, info: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, module and function of each script. Raises ValueError or configparser.Error."""
    if f"{info}/entry_points.txt" not in archive.namelist():
        return
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(archive.read(f"{info}/entry_points.txt").decode())
    for group in ("console_scripts", "gui_scripts"):
        for name, value in parser.items(group) if parser.has_section(group) else ():
            module, _, function = value.split("[")[0].strip().partition(":")
            if "/" in name or not all(part.isidentifier() for part in f"{module}.{function}".split(".")):
                raise ValueError(f"{name} = {value} is not an entry point")
            yield name, module, function
