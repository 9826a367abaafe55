"""Measure the barrier of all trainers: the synchronous step of a model with one number, in microseconds.

For comparison, bare pyzmq processes do the same: every client sends 4 bytes to every server, and servers answer when
all clients have sent.
"""

from __future__ import annotations

import ps_common as bench
import ps_small


def main() -> None:
    parser = bench.options(__doc__.splitlines()[0], layouts="8x4", rounds=5, steps=500)
    bench.more_options(parser, security="none", shm="off", streams="auto")
    parser.add_argument("--compare-streams", action="store_true", help="compare with the same without streams")
    given = parser.parse_args()
    rows = ps_small.compare(given, 4, barrier=True)
    bench.show(["barrier", *ps_small.headings(given, "bare")], rows)


if __name__ == "__main__":
    main()
