"""Create docs/report.png, a picture of the report of a real run that fails. Needs Chromium.

python docs/make_report_picture.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.browser import browser  # noqa: E402

PICTURE = Path(__file__).with_name("report.png")
WIDTH, HEIGHT = 1000, 1150
FAILURE = """    def evaluate(pass_):
        if pass_ == 7 and ps.rank == 2:
            raise ValueError("held-out data of this shard has no sentences")
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="demo-") as name:
        directory = Path(name)
        run(directory, "init", ".")
        run(directory, "fake", "up", "-n", "4")
        try:
            draw(directory)
        finally:
            run(directory, "fake", "down")


def draw(directory: Path) -> None:
    program = directory / "workspace/train.py"
    subprocess.run([sys.executable, "workspace/prepare_data.py", "--shards", "4"], cwd=directory, check=True)
    program.write_text(program.read_text().replace("    def evaluate(pass_):\n", FAILURE))
    conf = ("--conf", "fake/conf.py")
    start = ("start", "--job_dispatch_package", "workspace", "--set", "RESTARTS=0", *conf)
    run(directory, *start, "--", "--num_passes=20", code=1)
    run(directory, "report", "-o", "report.html", *conf)
    with browser() as one:
        one.open(directory / "report.html", width=WIDTH, height=HEIGHT)
        one.screenshot(PICTURE, whole=False)


def run(directory: Path, *args: str, code: int = 0) -> None:
    done = subprocess.run([sys.executable, "-m", "clusterctl", *args], cwd=directory, check=False)
    if done.returncode != code:
        raise SystemExit(f"{args}: exit code {done.returncode}")


if __name__ == "__main__":
    main()
