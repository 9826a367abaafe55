"""Play histories: `python -m simulation COUNT|SECONDSs [SEED [lead]]`; a failure prints the seed that repeats it.

With `lead` the first machine is lost, and nothing else happens.
"""

from __future__ import annotations

import collections
import os
import shlex
import sys
import time
import traceback

from simulation.history import History


def main(count: str, seed: str = "", only: str = "") -> int:
    if only not in ("", "lead"):
        raise SystemExit(__doc__)
    begin, limit_s = time.monotonic(), float(count[:-1]) if count.endswith("s") else None
    first = seed or f"{time.time():.0f}"
    ends: collections.Counter[str] = collections.Counter()
    number = failed = resumed = 0
    while number < int(count) if limit_s is None else time.monotonic() - begin < limit_s:
        name = seed if seed and count == "1" else f"{first}-{number}"
        number += 1
        history = History(name, only_lead=only == "lead")
        try:
            history.play()
        except Exception:  # noqa: BLE001 - any of them is a finding
            failed += 1
            print(f"\n{history.world.story() if count == '1' else ''}\n{traceback.format_exc()}")
            print(
                f"to repeat it, in tests/: python -m simulation 1 {shlex.join(filter(None, [name, only]))}", flush=True
            )
            if failed >= 5:
                break
        ends[history.end] += 1
        resumed += len(history.world.runs) - 1
    seconds = time.monotonic() - begin
    print(f"{number} histories in {seconds:.0f} s, {failed} failed, {resumed} runs resumed: {dict(ends)}")
    return min(failed, 1)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a history
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main(*sys.argv[1:]))
