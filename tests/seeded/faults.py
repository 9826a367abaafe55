"""The seeded faults of faults.toml. `python -m seeded.faults` lists those whose code has changed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seeded.reach import block_of
from seeded.trees import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LIST = Path(__file__).with_name("faults.toml")
ALWAYS = (
    "tests/contract/e2e/test_programs.py",
    "tests/contract/e2e/test_recovery.py",
    "tests/contract/e2e/test_resume.py",
)


@dataclass(frozen=True)
class Fault:
    id: str
    file: str
    old: str
    new: str

    @property
    def package(self) -> str:
        return self.file.split("/")[1].removesuffix(".py")

    def applied(self, source: str) -> str:
        """Return the module with the fault. Raises ValueError if its code is not there, or several times."""
        if source.count(self.old) != 1:
            raise ValueError(f"{self.id}: {self.file} has its code {source.count(self.old)} times")
        return source.replace(self.old, self.new)

    def block(self, source: str) -> str | None:
        """Return the block of the first line that differs, named as in a map of `seeded.reach`."""
        pairs = zip(source.splitlines(), self.applied(source).splitlines(), strict=False)
        line = next(number for number, (old, new) in enumerate(pairs, 1) if old != new)
        return block_of(source, line)


def read_faults() -> list[Fault]:
    return [Fault(**row) for row in tomllib.loads(LIST.read_text(encoding="utf-8"))["fault"]]


def files_reaching(fault: Fault, source: str, known: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """Return the test files that reach a fault, with the seconds they take: those of its package first, then by time.

    If the map knows none, those in the folders named like its package, and a few that run whole jobs.
    """
    block, folders = fault.block(source), fault.file.removesuffix(".py").split("/")[1:]

    def distance(test: str) -> int:
        parts = test.split("/")[2:]
        return -next((n for n in range(len(folders), 0, -1) if parts[:n] == folders[:n]), 0)

    reaching = [entry for entry in known if entry["code"] == 0 and block in entry["reached"].get(fault.file, ())]
    if reaching:
        ordered = sorted(reaching, key=lambda entry: (distance(entry["test"]), entry["seconds"]))
        return [(entry["test"], entry["seconds"]) for entry in ordered]
    near = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests/unit" / folders[0]).rglob("test_*.py")]
    return [(test, 60.0) for test in [*sorted(near, key=lambda test: (distance(test), test)), *ALWAYS]]


def main() -> int:
    faults, wrong = read_faults(), 0
    for fault in faults:
        path = ROOT / fault.file
        try:
            compile(fault.applied(path.read_text(encoding="utf-8")), fault.file, "exec")
        except (OSError, ValueError) as exc:
            wrong += 1
            print(exc)
    print(f"{len(faults) - wrong} of {len(faults)} faults can be put into this tree")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
