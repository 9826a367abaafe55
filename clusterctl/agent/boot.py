"""Runs first, from standard input, on a node where nothing may be installed yet.

`python3 -I -S -c "...exec..." DIGEST ROOT_DIR`. The request comes before the bundle, so that a node that has the bundle
costs no further round trip: it says `{"have": DIGEST}` and answers. One that lacks it says `{"need": DIGEST}` and reads
`SIZE`, a newline, and a zip.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

import os
import stat
import sys


def install(lib, digest, source):
    import hashlib
    import io
    import shutil
    import tempfile
    import zipfile

    archive = zipfile.ZipFile(io.BytesIO(source.read(int(source.readline()))))
    whole = hashlib.sha256()
    for name in archive.namelist():
        data = archive.read(name)
        whole.update(b"%s\0%d\0" % (name.encode(), len(data)) + data)
    if whole.hexdigest()[: len(digest)] != digest:
        raise OSError("the agent arrived damaged")
    os.makedirs(os.path.dirname(lib), 0o700, exist_ok=True)
    beside = tempfile.mkdtemp(dir=os.path.dirname(lib))
    try:
        archive.extractall(beside)
        os.rename(beside, lib)
    except OSError:
        shutil.rmtree(beside, ignore_errors=True)
        if not os.path.isdir(lib):  # else another agent was quicker, with the same bytes
            raise


def check_owner(root, lib):
    """Code is run only from directories that nobody else can write to."""
    place = lib
    while len(place) >= len(root):
        if os.path.lexists(place):
            found = os.lstat(place)
            theirs = found.st_uid not in ((0, os.getuid()) if place == root else (os.getuid(),))
            shared = found.st_mode & 0o022 and not (place == root and found.st_mode & stat.S_ISVTX)
            link = stat.S_ISLNK(found.st_mode) and place != root
            if theirs or shared or link:
                raise OSError(place + " can be written by others: it must be this account's own directory")
        place = os.path.dirname(place)


def boot(digest, root):
    import json

    source = sys.stdin.buffer
    if sys.version_info < (3, 9):
        version = "%d.%d" % sys.version_info[:2]
        hint = "set PYTHON in conf.py to a python3 from 3.9"
        return json.dumps({"error": {"kind": "node", "message": "python is " + version, "hint": hint}})
    root = os.path.abspath(os.path.expanduser(root))
    os.umask(0o077)  # what we and the job make is this account's own business
    request = source.readline()
    lib = os.path.join(root, ".clusterctl", "lib", digest)
    try:
        check_owner(root, lib)
        have = os.path.isdir(lib)
        print(json.dumps({"have" if have else "need": digest}), flush=True)
        if not have:
            install(lib, digest, source)
    except Exception as exc:  # noqa: BLE001 - a damaged zip has errors of its own, and zlib too
        hint = "can this account write to ROOT_DIR (" + root + ")?"
        return json.dumps({"error": {"kind": "node", "message": "cannot install the agent: " + str(exc), "hint": hint}})
    sys.path.insert(0, lib)
    from clusterctl.agent.main import main

    return main(root, request)


if __name__ == "__main__":
    problem = boot(sys.argv[1], sys.argv[2])
    if problem:
        print(problem, flush=True)
        sys.exit(1)
