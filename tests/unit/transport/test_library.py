"""The SSH library is imported without its expensive unused parts, which other code can still import."""

from __future__ import annotations

import subprocess
import sys


def run(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_unused_modules_are_not_imported_but_can_be_later() -> None:
    code = (
        "import sys\nfrom clusterctl.transport import paramiko_loader\nparamiko_loader.load()\nimport paramiko\n"
        "print(*{'email', 'csv', 'invoke', 'asyncio', 'unittest', 'importlib.metadata'} & set(sys.modules), '-')\n"
        "from importlib.metadata import version\nimport invoke\nprint(version('paramiko') != '0')"
    )
    assert run(code) == ["-", "True"]
