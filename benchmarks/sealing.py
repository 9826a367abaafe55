"""Sealing in one process, by one lane and by two: GB/s of records, and the cores that are busy.

It shows whether this machine's cryptography lets the interpreter go while it encrypts: only then do two lanes of one
pserver, each in a thread of its own, seal more than one does.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time

import cryptography

from clusterctl.runtime.stream.sealed import TAG_BYTES, Cipher

SIZES = (1_024, 4_096, 16_384, 65_536, 262_144)


def lane(size: int, records: int, start: threading.Barrier) -> None:
    """Seal records of one size and open them again, as the lanes at both ends of a stream do."""
    key = os.urandom(32)
    sealer, opener = Cipher(key), Cipher(key)
    plain, sealed, opened = (memoryview(bytearray(count)) for count in (size, size + TAG_BYTES, size))
    start.wait()
    for _ in range(records):
        sealer.seal(plain, sealed)
        assert opener.open(sealed, opened)


def measure(lanes: int, size: int, total: int) -> tuple[float, float]:
    """Return GB/s, sealed and opened, and the busy cores."""
    start = threading.Barrier(lanes + 1)
    threads = [threading.Thread(target=lane, args=(size, total // size, start)) for _ in range(lanes)]
    for thread in threads:
        thread.start()
    start.wait()
    began, cpu = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    return lanes * total / took / 1e9, (time.process_time() - cpu) / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=200, help="bytes of one measurement and lane")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    print(f"cryptography {cryptography.__version__}, {os.cpu_count()} cores; GB/s sealed and opened, and busy cores")
    for size in SIZES:
        runs = [[measure(lanes, size, options.mb * 10**6) for lanes in (1, 2)] for _ in range(options.runs)]
        medians = [[statistics.median(run[n][k] for run in runs) for k in range(2)] for n in range(2)]
        (one, busy), (two, both) = medians
        print(f"{size:>7} bytes   1 lane {one:5.2f} ({busy:.2f})   2 lanes {two:5.2f} ({both:.2f})   {two / one:.2f}")


if __name__ == "__main__":
    main()
