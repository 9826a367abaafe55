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
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from clusterctl.common.errors import AgentError
from clusterctl.common.tree import COPY_BYTES

if TYPE_CHECKING:
    pass


SHEBANG_CHARS = 127  # what every Linux reads of a first line


class Place(NamedTuple):
    """Where an environment's files go. `python` is what scripts run: the environment's own, where it will be."""

    prefix: Path
    site: Path
    python: str


def unpack(path: Path, place: Place) -> None:
    """Installs a wheel. Raises `AgentError` when it is damaged, or would write outside of the environment."""
    stem = "-".join(path.name.split("-")[:2])
    try:
        with zipfile.ZipFile(path) as archive:
            info = _find_info(archive, stem)
            expected = _recorded(archive, info)
            for member in archive.infolist():
                if not member.is_dir():
                    _extract(archive, member, expected, place, info)
            _write_entry_points(archive, info, place)
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as exc:
        raise AgentError(f"{path.name} is not a sound wheel: {exc}") from exc
    (place.site / info / "INSTALLER").write_text("clusterctl\n")


def _find_info(archive: zipfile.ZipFile, stem: str) -> str:
    """The directory `NAME-VERSION.dist-info`, however it is spelt."""
    tops = {name.split("/")[0] for name in archive.namelist() if "/" in name}
    found = [top for top in tops if top.endswith(".dist-info")]
    if len(found) != 1:
        raise ValueError(f"{len(found)} dist-info directories for {stem}")
    return found[0]


def _recorded(archive: zipfile.ZipFile, info: str) -> dict[str, str]:
    """The hashes of RECORD, by name, as it writes them: sha256=BASE64."""
    rows = csv.reader(archive.read(f"{info}/RECORD").decode().splitlines())
    return {row[0]: row[1] for row in rows if row}


def _extract(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, expected: dict[str, str], place: Place, info: str
) -> None:
    name = member.filename
    if name.startswith("/") or "\\" in name or ".." in name.split("/"):
        raise ValueError(f"{name} leads out of it")
    unsigned = (f"{info}/RECORD", f"{info}/RECORD.jws", f"{info}/RECORD.p7s")
    if name not in expected and name not in unsigned:
        raise ValueError(f"{name} is not in its RECORD")
    target = _target(name, place)
    target.parent.mkdir(parents=True, exist_ok=True)
    script = ".data/scripts/" in name
    with archive.open(member) as source, target.open("wb") as f:
        found = _copy(source, f, place.python if script else None)  # type: ignore[arg-type]
    if expected.get(name, "").startswith("sha256=") and expected[name] != found:
        raise ValueError(f"{name} is not what its RECORD says")
    if script or (member.external_attr >> 16) & 0o111:
        target.chmod(0o755)


def _target(name: str, place: Place) -> Path:
    top, _, rest = name.partition("/")
    if not top.endswith(".data"):
        return place.site / name
    scheme, _, rest = rest.partition("/")
    tops = {
        "purelib": place.site,
        "platlib": place.site,
        "scripts": place.prefix / "bin",
        "data": place.prefix,
        "headers": place.prefix / "include" / top.split("-")[0],
    }
    return tops[scheme] / rest


def _copy(source: BinaryIO, target: BinaryIO, python: str | None) -> str:
    """Copies; a script's `#!python` becomes the interpreter. The hash is of what was read."""
    digest = hashlib.sha256()
    first = source.readline() if python else b""
    digest.update(first)
    target.write(shebang(python) if python and first.startswith(b"#!python") else first)
    while data := source.read(COPY_BYTES):
        digest.update(data)
        target.write(data)
    return "sha256=" + base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")


def shebang(python: str) -> bytes:
    """The first line of a script, or two that /bin/sh and python both read where the kernel could not."""
    line = b"#!" + os.fsencode(python) + b"\n"
    if len(line) <= SHEBANG_CHARS and b" " not in line:
        return line
    quoted = re.sub(rb'(["$`\\])', rb"\\\1", os.fsencode(python))
    return b"#!/bin/sh\n'''exec' \"" + quoted + b'" "$0" "$@"\n\' \'\'\'\n'


def _write_entry_points(archive: zipfile.ZipFile, info: str, place: Place) -> None:
    if f"{info}/entry_points.txt" not in archive.namelist():
        return
    for name, module, function in _entry_points(archive.read(f"{info}/entry_points.txt").decode()):
        script = place.prefix / "bin" / name
        body = f"import sys\nfrom {module} import {function.split('.')[0]}\nsys.exit({function}())\n"
        script.write_bytes(shebang(place.python) + body.encode())
        script.chmod(0o755)


def _entry_points(text: str) -> Iterator[tuple[str, str, str]]:
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    for group in ("console_scripts", "gui_scripts"):
        for name, value in parser.items(group) if parser.has_section(group) else ():
            module, _, function = value.split("[")[0].strip().partition(":")
            if "/" in name or not all(part.isidentifier() for part in f"{module}.{function}".split(".")):
                raise ValueError(f"{name} = {value} is no entry point")
            yield name, module, function
