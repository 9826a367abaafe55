"""Compare four ways to build a Python environment from the same wheels: pip, `setup` without uv, and `setup` with it.

All contenders get the same wheels from the disk, check their hashes, use no network, and start from nothing in every
round. pip runs as it does by default and with --no-compile, because neither uv nor `setup` compiles modules in advance.
The times of `setup` are those of its step on the node: they include a test of the new environment, which imports numpy
and zmq, and writing it to the disk. pip's include neither. uv runs with an empty cache, and with one that has the
wheels from an earlier environment.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from clusterctl.agent.packages import uv as agents_uv
from clusterctl.agent.packages.venvs import Venvs
from clusterctl.common.wheels import Wheel, WheelStore, pinned

PACKAGES = ("numpy", "pyzmq", "pandas", "scipy", "pillow", "tqdm", "pyyaml", "requests")
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


class Contenders:
    """Each method builds one environment, and returns its seconds."""

    def __init__(self, scratch: Path, packages: list[str]) -> None:
        self._scratch = scratch
        self._store = WheelStore(scratch / "root/.clusterctl/wheels")
        with self._store.workplace() as workplace:
            run([*PIP, "download", "--only-binary", ":all:", "--dest", workplace, *packages])
            self.lock: list[Wheel] = sorted(self._store.adopt(path) for path in Path(workplace).glob("*.whl"))
        self._venvs = Venvs(scratch / "root")
        self._venvs.directory.mkdir()
        found = agents_uv.find(scratch / "root")
        if found is None:
            raise SystemExit("uv is not in PATH")
        self.uv = found

    def pip(self, *options: str) -> float:
        venv, listed = self._scratch / "venv", self._scratch / "requirements.txt"
        shutil.rmtree(venv, ignore_errors=True)
        listed.write_text("\n".join(pinned(self.lock)) + "\n")
        run([sys.executable, "-m", "venv", "--without-pip", str(venv)])
        places = [f"--find-links={self._store.path(wheel).parent}" for wheel in self.lock]
        exact = ["--no-index", "--no-deps", "--require-hashes", *places, "--requirement", str(listed)]
        return seconds(lambda: run([*PIP, "--python", str(venv), "install", *options, *exact]))

    def setup(self) -> float:
        return self._build(None)

    def setup_with_uv(self) -> float:
        shutil.rmtree(self.uv.cache, ignore_errors=True)
        return self._build(self.uv)

    def setup_with_full_cache(self) -> float:
        return self._build(self.uv)

    def _build(self, uv: agents_uv.Uv | None) -> float:
        shutil.rmtree(self._venvs.path(self._venvs.name_of(self.lock)), ignore_errors=True)
        began = time.perf_counter()
        built = self._venvs.build(self.lock, self._store, lambda package: False, uv)
        if built.problem or built.builder is None:
            raise SystemExit(f"uv failed: {built.problem}")
        return time.perf_counter() - began


def run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", default=list(PACKAGES), help="requirements, for pip download")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        build = Contenders(Path(scratch), options.packages)
        size = sum(wheel.size for wheel in build.lock)
        print(f"{len(build.lock)} wheels, {size / 1e6:.0f} MB; uv {build.uv.version}; medians of {options.rounds}")
        contenders: dict[str, Callable[[], float]] = {
            "pip": build.pip,
            "pip --no-compile": lambda: build.pip("--no-compile"),
            "setup without uv": build.setup,
            "setup with uv, empty cache": build.setup_with_uv,
            "setup with uv, full cache": build.setup_with_full_cache,
        }
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(options.rounds):
            for name, contender in contenders.items():
                times[name].append(contender())
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"{'':28} {'median':>8} {'range':>15}   pip / this   pip --no-compile / this")
    for name, median in medians.items():
        spread = f"{min(times[name]):.1f} to {max(times[name]):.1f}"
        ratios = [medians[other] / median for other in ("pip", "pip --no-compile")]
        print(f"{name:28} {median:6.1f} s {spread:>15} {ratios[0]:12.1f} {ratios[1]:25.1f}")


if __name__ == "__main__":
    main()
