"""All paths and file contents in a fake cluster's directory, and the rules for removing them."""

from __future__ import annotations

import ast
import base64
import contextlib
import getpass
import hashlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.common.procfs import Identity
from clusterctl.errors import RefusedError

ADDRESS = "127.0.0.1"
_MARK = "# Written by `clusterctl fake up`. sha256 of what follows: "


@dataclass(frozen=True)
class FakeNode:
    """One node of a fake cluster. `address` is set if the other nodes reach it under a different address than we do."""

    index: int
    port: int
    home: Path
    key: str  # the public half of its host key, in the format of known_hosts
    user: str = field(default_factory=getpass.getuser)
    address: str | None = None

    @property
    def label(self) -> str:
        return f"node{self.index}"

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its host key, in the format of ssh-keygen."""
        digest = hashlib.sha256(base64.b64decode(self.key.split()[1])).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")

    @property
    def host(self) -> str:
        """The user, address and port for SSH."""
        return f"{self.user}@{ADDRESS}:{self.port}"

    @property
    def entry(self) -> str:
        """Its HOSTS entry, as Python source."""
        return repr(self.host) if self.address is None else f"Host({self.host!r}, address={self.address!r})"


@dataclass(frozen=True)
class FakeState:
    """The contents of fake.json.

    `server` is the server process: None while it is starting, or if the backend has none. `daemons` are the nodes'
    own SSH servers, if each has one. `faults` maps node numbers to the faults that cannot be observed from outside.
    """

    backend: str
    server: Identity | None = None
    nodes: tuple[FakeNode, ...] = ()
    daemons: tuple[Identity, ...] = ()
    faults: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FakePaths:
    """The paths of one fake cluster. `directory` is absolute and without symbolic links."""

    directory: Path

    @classmethod
    def of(cls, directory: Path) -> FakePaths:
        return cls(Path(directory).expanduser().resolve())

    @property
    def conf(self) -> Path:
        return self.directory / "conf.py"

    @property
    def known_hosts(self) -> Path:
        return self.directory / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        return self.directory / "ssh_config"

    @property
    def keys(self) -> Path:
        return self.directory / "keys"

    @property
    def identity(self) -> Path:
        return self.keys / "client"

    @property
    def nodes(self) -> Path:
        return self.directory / "nodes"

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    @property
    def daemons(self) -> Path:
        """The directory for the configuration and logs of the nodes' own SSH servers."""
        return self.directory / "sshd"

    @property
    def control(self) -> Path:
        """The control socket of the embedded server."""
        return self.directory / "control"

    @property
    def state(self) -> Path:
        return self.directory / "fake.json"

    def home(self, index: int) -> Path:
        return self.nodes / f"node{index}"

    def read_state(self) -> FakeState | None:
        """Return the contents of fake.json, or None if it is missing or malformed."""
        try:
            document = json.loads(self.state.read_bytes())
            server = document["server"]
            return FakeState(
                backend=document["backend"],
                server=Identity(**server) if server else None,
                nodes=tuple(FakeNode(**{**node, "home": Path(node["home"])}) for node in document["nodes"]),
                daemons=tuple(Identity(**daemon) for daemon in document["daemons"]),
                faults={int(index): fault for index, fault in document["faults"].items()},
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write_state(self, state: FakeState) -> None:
        document: dict[str, Any] = {
            "backend": state.backend,
            "server": state.server.to_json() if state.server else None,
            "nodes": [asdict(node) for node in state.nodes],
            "daemons": [daemon.to_json() for daemon in state.daemons],
            "faults": dict(state.faults),
        }
        write(self.state, json.dumps(document, default=str, indent=1) + "\n")

    def refuse_foreign_files(self) -> None:
        """Raise RefusedError if `up` would overwrite a file that does not belong to a fake cluster."""
        if self.conf.exists() and not conf_is_ours(self.conf):
            raise RefusedError(
                f"{self.conf} was not written by `fake up`, or was edited since, and would be overwritten",
                hint="move it away, or choose another directory with --dir PATH",
            )
        mine = (self.known_hosts, self.ssh_config, self.keys, self.nodes, self.log, self.daemons, self.control)
        foreign = [path.name for path in mine if path.exists()]
        if foreign and not self.state.exists():
            raise RefusedError(
                f"{self.directory} has {', '.join(foreign)}, but not from a fake cluster",
                hint="choose another directory with --dir PATH",
            )

    def remove(self) -> None:
        """Remove our own files and nothing else. Keep an edited conf.py. Remove the directory if it is empty."""
        if not self.state.exists():
            return
        for tree in (self.nodes, self.keys, self.daemons):
            if tree.is_dir() and not tree.is_symlink():
                _remove_tree(tree)
        if self.conf.exists() and conf_is_ours(self.conf):
            self.conf.unlink()
        for file in (self.known_hosts, self.ssh_config, self.log, self.control, self.state):
            file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.directory.rmdir()


def read_public_key(file: Path) -> str:
    """Return the public key in a file, in the format of known_hosts."""
    return " ".join(file.read_text().split()[:2])


def write_files(layout: FakePaths, nodes: Sequence[FakeNode]) -> bool:
    """Write the files for reaching the nodes: known_hosts, ssh_config and conf.py.

    An edited conf.py is left alone. Return True if all files were written.
    """
    write(layout.known_hosts, "".join(f"[{ADDRESS}]:{node.port} {node.key}\n" for node in nodes))
    write(layout.ssh_config, ssh_config_text(layout, nodes))
    if layout.conf.exists() and not conf_is_ours(layout.conf):
        return False
    write(layout.conf, conf_text(layout, nodes), 0o644)
    return True


def conf_text(layout: FakePaths, nodes: Sequence[FakeNode]) -> str:
    """Return the conf.py of a fake cluster, with a checksum in its first line."""
    hosts = "".join(f"    {node.entry},\n" for node in nodes)
    body = (
        f"HOSTS = [\n{hosts}]\n"
        'ROOT_DIR = "~/clusterctl"\n'
        f"IDENTITY_FILE = {str(layout.identity)!r}\n"
        f"KNOWN_HOSTS = {str(layout.known_hosts)!r}\n"
        f"SSH_CONFIG = {str(layout.ssh_config)!r}\n"
        "# data files as the template workspaces name them: each trainer's node gets only its own shards\n"
        'SHARDS = ["train.???-*", "test.???-*"]\n'
    )
    return f"{_MARK}{_digest(body)}\n{body}"


def conf_is_ours(conf: Path) -> bool:
    """Return True if we wrote this conf.py and it has not been edited."""
    try:
        head, _, body = conf.read_text(encoding="utf-8").partition("\n")
    except (OSError, UnicodeDecodeError):
        return False
    return head == _MARK + _digest(body)


def written_for(conf: Path) -> Path | None:
    """Return the directory of the cluster for which we wrote this conf.py, even if it was edited or copied since.

    None if it was turned into one for other machines: then it has another IDENTITY_FILE.
    """
    try:
        head, *lines = conf.read_text(encoding="utf-8").splitlines() or [""]
        if not head.startswith(_MARK):
            return None
        named = [line.partition(" = ")[2] for line in lines if line.startswith("IDENTITY_FILE = ")]
        identity = Path(ast.literal_eval(named[-1])) if named else Path()
    except (OSError, ValueError, SyntaxError, TypeError):
        return None
    layout = FakePaths(identity.parent.parent)
    return layout.directory if identity.is_absolute() and identity == layout.identity else None


def ssh_config_text(layout: FakePaths, nodes: Sequence[FakeNode]) -> str:
    """Return an ssh_config for interactive use: `ssh -F DIR/ssh_config node0` logs in to fake node 0."""
    blocks = [f"Host {n.label}\n  HostName {ADDRESS}\n  Port {n.port}\n  User {n.user}\n" for n in nodes]
    identity, known_hosts = (str(path).replace("%", "%%") for path in (layout.identity, layout.known_hosts))
    common = f'Host node*\n  IdentityFile "{identity}"\n  IdentitiesOnly yes\n  UserKnownHostsFile "{known_hosts}"\n'
    return "".join([*blocks, common])


def write(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file atomically: to a temporary file in the same directory, then rename it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _remove_tree(tree: Path) -> None:
    if sys.version_info >= (3, 12):
        shutil.rmtree(tree, onexc=_make_removable)
    else:
        shutil.rmtree(tree, onerror=_make_removable)


def _make_removable(function: Callable[..., Any], path: str, _: object) -> None:
    """Retry after adding permissions: jobs may leave directories that are not writable."""
    Path(path).parent.chmod(0o700)
    if Path(path).is_dir() and not Path(path).is_symlink():
        Path(path).chmod(0o700)
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(FileNotFoundError):
        function(path)


ANSWER_S = 30.0


def listen(layout: FakePaths) -> socket.socket:
    """Return the server's end. Only this account may enter the directory."""
    sock = socket.socket(socket.AF_UNIX)
    with _short_name(layout) as name:
        sock.bind(name)
    sock.listen()
    return sock


@contextlib.contextmanager
def connect(layout: FakePaths) -> Iterator[socket.socket]:
    """Yield the client's end. Raises OSError if no server listens or it does not answer."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(ANSWER_S)
        with _short_name(layout) as name:
            sock.connect(name)
        yield sock


@contextlib.contextmanager
def _short_name(layout: FakePaths) -> Iterator[str]:
    fd = os.open(layout.control.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{layout.control.name}"
    finally:
        os.close(fd)
