"""The first program of every agent call, sent on standard input to a node where nothing may be installed yet.

`python3 -I -S -c "...exec..." DIGEST ROOT_DIR`. The request comes before the bundle, so that a node with the bundle
needs no further round trip: it sends `{"have": DIGEST}` and the answer. A node without it sends `{"need": DIGEST}` and
reads `SIZE`, a newline, and the bundle. With `JOB TREE` as further arguments, and that job untouched, it only sends
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
    offset = 0
    while offset < len(whole):
        name, size = whole[offset : offset + 1000].split(b"\0", 2)[:2]
        offset += len(name) + len(size) + 2
        path = os.path.join(beside, name.decode())
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        with open(path, "wb") as f:
            f.write(whole[offset : offset + int(size)])
        offset += int(size)
    try:
        os.rename(beside, lib)
    except OSError:
        import shutil

        shutil.rmtree(beside, ignore_errors=True)
        if not os.path.isdir(lib):  # else another agent has just installed the same bytes
            raise


def check_owner(root, lib):
    """Refuse to run code from directories that others can write to."""
    path = lib
    while len(path) >= len(root):
        if os.path.lexists(path):
            status = os.lstat(path)
            theirs = status.st_uid not in ((0, os.getuid()) if path == root else (os.getuid(),))
            shared = status.st_mode & 0o022 and not (path == root and status.st_mode & stat.S_ISVTX)
            link = stat.S_ISLNK(status.st_mode) and path != root
            if theirs or shared or link:
                raise OSError(path + " can be written by others: it must be this account's own directory")
        path = os.path.dirname(path)


def refuse(message, hint):
    import json

    print(json.dumps({"error": {"kind": "node", "message": message, "hint": hint}}), flush=True)
    sys.exit(1)


def boot(digest, root, *expected):
    source = sys.stdin.buffer
    if sys.version_info < (3, 9):
        refuse("python is %d.%d" % sys.version_info[:2], "set PYTHON in conf.py to a python3 of version 3.9 or later")
    root = os.path.abspath(os.path.expanduser(root))
    os.umask(0o077)  # files of the agent and the job are private to this account
    request = source.readline()
    lib = os.path.join(root, ".clusterctl", "lib", digest)
    try:
        check_owner(root, lib)
        have = os.path.isdir(lib)
        if not have:
            print('{"need": "%s"}' % digest, flush=True)
            install(lib, digest, source)
    except Exception as exc:  # noqa: BLE001 - damaged data raises errors of many kinds
        refuse("cannot install the agent: " + str(exc), "check that this account can write to ROOT_DIR (" + root + ")")
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
