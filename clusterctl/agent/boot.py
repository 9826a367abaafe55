"""Runs first, from standard input, on a node where nothing may be installed yet.

`python3 -I -S -c "...exec..." DIGEST ROOT_DIR`. The request comes before the bundle, so that a node that has the bundle
costs no further round trip: it says `{"have": DIGEST}` and answers. One that lacks it says `{"need": DIGEST}` and reads
`SIZE`, a newline, and the bundle. With `JOB TREE` as further words, and that job untouched, it says no more than
`{"untouched": DIRECTORY}`.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

import os
import stat
import sys


def install(lib, digest, source):
    import hashlib
    import zlib

    whole = zlib.decompress(source.read(int(source.readline())))
    if hashlib.sha256(whole).hexdigest()[: len(digest)] != digest:
        raise OSError("the agent arrived damaged")
    beside = "%s.%d" % (lib, os.getpid())
    place = 0
    while place < len(whole):
        name, size = whole[place : place + 1000].split(b"\0", 2)[:2]
        place += len(name) + len(size) + 2
        path = os.path.join(beside, name.decode())
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        with open(path, "wb") as f:
            f.write(whole[place : place + int(size)])
        place += int(size)
    try:
        os.rename(beside, lib)
    except OSError:
        import shutil

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


def refuse(message, hint):
    import json

    print(json.dumps({"error": {"kind": "node", "message": message, "hint": hint}}), flush=True)
    sys.exit(1)


def boot(digest, root, *expected):
    source = sys.stdin.buffer
    if sys.version_info < (3, 9):
        refuse("python is %d.%d" % sys.version_info[:2], "set PYTHON in conf.py to a python3 from 3.9")
    root = os.path.abspath(os.path.expanduser(root))
    os.umask(0o077)  # what we and the job make is this account's own business
    request = source.readline()
    lib = os.path.join(root, ".clusterctl", "lib", digest)
    try:
        check_owner(root, lib)
        have = os.path.isdir(lib)
        if not have:
            print('{"need": "%s"}' % digest, flush=True)
            install(lib, digest, source)
    except Exception as exc:  # noqa: BLE001 - what is damaged has errors of many kinds
        refuse("cannot install the agent: " + str(exc), "can this account write to ROOT_DIR (" + root + ")?")
    sys.path.insert(0, lib)
    if have and expected:
        from clusterctl.common.seal import untouched_job

        job_dir = untouched_job(root, *expected)
        if job_dir:
            print('{"untouched": "%s"}' % job_dir, flush=True)
            os._exit(0)
    if have:
        print('{"have": "%s"}' % digest, flush=True)
    from clusterctl.agent.main import main

    main(root, request)


if __name__ == "__main__":
    boot(*sys.argv[1:])
