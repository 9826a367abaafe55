"""The first program of every agent call, sent on standard input to a node where nothing may be installed yet.

`python3 -I -S -c "...exec..." DIGEST ROOT_DIR`. The request comes before the bundle, so that a node with the bundle
needs no further round trip: it sends `{"have": DIGEST}` and the answer. A node without it sends `{"need": DIGEST}` and
reads a size, a newline and the bundle. With `JOB TREE` as further arguments, and that job untouched, it only sends
`{"untouched": DIRECTORY}`.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

import contextlib
import fcntl
import grp
import hashlib
import json
import os
import pwd
import shutil
import signal
import stat
import sys
import zlib

UNKNOWN = "unknown"
SILENCE_S = 30  # an agent that waits for its request or its bundle ends if nothing arrives for so long


def boot_id():
    try:
        with open("/proc/sys/kernel/random/boot_id") as f:
            return f.read().strip()
    except OSError:
        return UNKNOWN


def is_verified(lib, digest, mark):
    """Return True if the installed agent is whole. One that a power cut has damaged is removed.

    It is verified once after each reboot; then there is a file `mark`.
    """
    if os.path.exists(mark):
        return True
    lock = os.open(os.path.dirname(lib), os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(mark):
            if not os.path.isdir(lib):
                return False
            if not is_whole(lib, digest):
                remove(lib)
                return False
            with contextlib.suppress(OSError):  # a power cut may leave the disk read-only
                open(mark, "w").close()
        return True
    finally:
        os.close(lock)


def is_whole(lib, digest):
    """Compare the agent with its digest. Compiled files are not part of it, so they are removed, or else ignored."""
    names = []
    for top, directories, files in os.walk(lib):
        if "__pycache__" in directories:
            directories.remove("__pycache__")
            shutil.rmtree(os.path.join(top, "__pycache__"), ignore_errors=True)
            if os.path.exists(os.path.join(top, "__pycache__")):
                sys.pycache_prefix = os.devnull
        names += [os.path.relpath(os.path.join(top, name), lib) for name in files if name.endswith(".py")]
    whole = hashlib.sha256()
    for name in sorted(names):
        with open(os.path.join(lib, name), "rb") as f:
            data = f.read()
        whole.update(b"%s\0%d\0%s" % (name.encode(), len(data), data))
    return whole.hexdigest()[: len(digest)] == digest


def remove(lib):
    aside = "%s.%d.damaged" % (lib, os.getpid())
    os.rename(lib, aside)
    shutil.rmtree(aside, ignore_errors=True)


def read_all(source, size):
    data = b""
    while len(data) < size:
        signal.alarm(SILENCE_S)
        piece = source.read1(size - len(data))
        if not piece:
            break
        data += piece
    signal.alarm(0)
    return data


def install(lib, digest, source, mark):
    signal.alarm(SILENCE_S)
    whole = zlib.decompress(read_all(source, int(source.readline())))
    if hashlib.sha256(whole).hexdigest()[: len(digest)] != digest:
        raise OSError("the agent arrived damaged")
    beside = "%s.%d" % (lib, os.getpid())
    write_files(beside, whole, durable=mark.endswith(UNKNOWN))
    open(os.path.join(beside, mark), "w").close()
    try:
        os.rename(beside, lib)
    except OSError:
        shutil.rmtree(beside, ignore_errors=True)
        if not os.path.isdir(lib):  # else another agent has just installed the same bytes
            raise


def write_files(top, archive, durable):
    """Write the files of an archive below a directory of our own.

    A power cut may leave them empty. `is_verified` notices that, except where a reboot does not show (`durable`).
    """
    made, offset = set(), 0
    while offset < len(archive):
        name, size = archive[offset : offset + 1000].split(b"\0", 2)[:2]
        offset += len(name) + len(size) + 2
        path = os.path.join(top, name.decode())
        directory = os.path.dirname(path)
        if directory not in made:
            os.makedirs(directory, 0o700, exist_ok=True)
            made.add(directory)
        with open(path, "wb") as f:
            f.write(archive[offset : offset + int(size)])
            if durable:
                f.flush()
                os.fsync(f.fileno())
        offset += int(size)


def check_owner(root, lib):
    """Refuse to run code from directories that others can write to or rename. ROOT_DIR may be a link of one's own."""
    ours = (0, os.getuid())
    path = lib
    while len(path) >= len(root):
        if os.path.lexists(path):
            status = os.lstat(path)
            if path == root and stat.S_ISLNK(status.st_mode) and status.st_uid in ours:
                status = os.stat(path)
            theirs = status.st_uid not in (ours if path == root else (os.getuid(),))
            shared = status.st_mode & 0o022 and not (path == root and status.st_mode & stat.S_ISVTX)
            if theirs or shared or stat.S_ISLNK(status.st_mode):
                raise OSError(path + " can be written by others: it must be this account's own directory")
        path = os.path.dirname(path)
    for start in {root, os.path.realpath(root)}:
        path = start
        while os.path.dirname(path) != path:
            child, path = path, os.path.dirname(path)
            if os.path.exists(path):
                writers = writers_of(os.stat(path), child, ours)
                if writers:
                    raise OSError("%s can be written by %s, who could replace ROOT_DIR below it" % (path, writers))


def writers_of(status, child, ours):
    """Name those who could replace `child` in a directory, except this account and root; None if nobody could."""
    if status.st_uid not in ours:
        return "its owner, uid %d" % status.st_uid
    if status.st_mode & stat.S_ISVTX and not (os.path.lexists(child) and os.lstat(child).st_uid not in ours):
        return None
    if status.st_mode & 0o002:
        return "everybody"
    if not status.st_mode & 0o020:
        return None
    with contextlib.suppress(OSError):  # it has none
        os.getxattr(os.path.dirname(child), "system.posix_acl_access")
        return "accounts in its access control list"
    group, account, primary = str(status.st_gid), str(os.getuid()), []
    members = ["unknown accounts"]
    try:
        account = pwd.getpwuid(os.getuid()).pw_name
        primary = [entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == status.st_gid]
        group, _, _, members = grp.getgrgid(status.st_gid)
    except KeyError:
        pass
    own_groups = (os.getgid(), *os.getgroups())
    alone = {"root", account}.issuperset(members + primary) and (group == account or status.st_gid not in own_groups)
    return None if alone else "group " + group


def refuse(message, hint):
    print(json.dumps({"error": {"kind": "no_agent", "message": message, "hint": hint}}), flush=True)
    sys.exit(1)


def boot(digest, root, *expected):
    source = sys.stdin.buffer
    if sys.version_info < (3, 9):
        refuse("python is %d.%d" % sys.version_info[:2], "set PYTHON in conf.py to a python3 of version 3.9 or later")
    root = os.path.abspath(os.path.expanduser(root))
    umask = os.umask(0o077)  # files of the agent and the job are private to this account
    request = source.readline()
    signal.alarm(0)
    lib = os.path.join(root, ".clusterctl", "lib", digest)
    mark = "verified-" + boot_id()
    try:
        check_owner(root, lib)
    except OSError as exc:
        refuse(str(exc), "use a ROOT_DIR below this account's home, or below a directory that only root can write to")
    try:
        have = os.path.isdir(lib) and is_verified(lib, digest, os.path.join(lib, mark))
        if not have:
            print('{"need": "%s"}' % digest, flush=True)
            install(lib, digest, source, mark)
            check_owner(root, lib)  # others may have made a directory in the meantime
    except Exception as exc:  # noqa: BLE001 - damaged data raises errors of many kinds
        refuse("cannot install the agent: " + str(exc), "check that this account can write to ROOT_DIR (" + root + ")")
    sys.path.insert(0, lib)
    if have and expected:
        from clusterctl.common.seal import untouched_job

        job_dir = untouched_job(root, expected[0], expected[1], mark)
        if job_dir:
            print('{"untouched": "%s"}' % job_dir, flush=True)
            return
    if have:
        print('{"have": "%s"}' % digest, flush=True)
    from clusterctl.agent.main import main

    sys.exit(main(root, request, umask))


if __name__ == "__main__":
    boot(*sys.argv[1:])
