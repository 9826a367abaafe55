"""Tiny wheels, built by hand."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path


def make_wheel(
    directory: Path, name: str, version: str, files: dict[str, str], *, lie_about: str = "", tag: str = "py3-none-any"
) -> Path:
    """Make a wheel; `files` may have `entry_points.txt` and `scripts/NAME`, and RECORD is wrong about `lie_about`."""
    directory.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    contents = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    for path, text in files.items():
        top = {"entry_points.txt": f"{info}/", "scripts": f"{name}-{version}.data/"}.get(path.split("/")[0], "")
        contents[top + path] = text
    record = ""
    for path, text in contents.items():
        data = b"something else" if path == lie_about else text.encode()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        record += f"{path},sha256={digest},{len(data)}\n"
    wheel = directory / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**contents, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(path, text)
    return wheel


def tiny(directory: Path, version: str = "1.0", tag: str = "py3-none-any") -> Path:
    """Make a wheel with a module, a console script and a plain script."""
    return make_wheel(
        directory,
        "tiny",
        version,
        {
            "tiny/__init__.py": f"VERSION = {version!r}\ndef main():\n    print('tiny', VERSION)\n",
            "entry_points.txt": "[console_scripts]\ntiny-say = tiny:main\n",
            "scripts/tiny-plain": "#!python\nimport sys, tiny; print(sys.prefix)\n",
        },
        tag=tag,
    )
