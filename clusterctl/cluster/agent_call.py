"""One call to the agent of a node: its start, its messages, and the reasons for its end."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
import threading
import zlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from clusterctl.cluster.answers import MOST_WORDS
from clusterctl.cluster.heartbeats import AgentInput
from clusterctl.common.safe_json import parse
from clusterctl.errors import ClusterctlError, NodeError, RefusedError, UsageError
from clusterctl.inventory import Node

PACKAGE = Path(__file__).parents[1]
PARTS = ("common", "transfer", "agent", "runtime", "torch")
#: The first bytes for FIRST_LINE. If a start-up file replaces the agent by a shell that reads commands from its input,
#: the shell ends here, and runs nothing of the program.
STOP_SHELL = b"exit 97;"
DIGEST_CHARS = 16


class Bundle:
    """The shipped code. It is read once, so that its name and contents match even if the sources change meanwhile."""

    def __init__(self) -> None:
        paths = [PACKAGE / "__init__.py", *(path for part in PARTS for path in (PACKAGE / part).rglob("*.py"))]
        names = sorted(f"clusterctl/{path.relative_to(PACKAGE).as_posix()}" for path in paths)
        sources = {name.encode(): (PACKAGE.parent / name).read_bytes() for name in names}
        self._whole = b"".join(
            part for name, data in sources.items() for part in (b"%s\0%d\0" % (name, len(data)), data)
        )
        self.digest = hashlib.sha256(self._whole).hexdigest()[:DIGEST_CHARS]
        self._parcel = b""
        self._lock = threading.Lock()

    @property
    def parcel(self) -> bytes:
        """The size and the archive that `agent/boot.py` installs. It is made only when a node lacks it."""
        with self._lock:  # all nodes of a first dispatch ask at once
            if not self._parcel:
                archive = zlib.compress(self._whole)
                self._parcel = b"%d\n%s" % (len(archive), archive)
            return self._parcel


@lru_cache(maxsize=1)
def boot_program(source: bytes | None = None) -> bytes:
    """Return what FIRST_LINE reads and runs: the size and the text of `agent/boot.py`, or of `source` in its place."""
    text = (PACKAGE / "agent" / "boot.py").read_bytes() if source is None else source
    return b"%s%d\n%s" % (STOP_SHELL, len(text), text)


ANSWER_S = 60.0
DOUBT_S = 10.0  # an agent has usually answered long before; else the login shell is tested
AGAIN_S = 20.0  # for the sign that an idle agent is there; then another one is started
MAX_LINE = 32 << 20
MOST_LINES = 100_000  # before the last one
AGENT_ENDED = "agent_ended"
NO_AGENT = "no_agent"  # there is no Python for it, or no place
NO_MODULE = re.compile(r"No module named '(\w+)'")
#: What an agent does next: it ends; it has answered and stays for another request; or it has started processes that
#: would end with it, and serves no more.
Plan = Literal["ends", "stays", "holds"]
ERROR_KINDS: Mapping[str, type[ClusterctlError]] = {
    "refused": RefusedError,
    "usage": UsageError,
}


def is_hurried(answer_s: float) -> bool:
    """Return True if a caller that waits so long would rather do without a node than find out why it is silent."""
    return answer_s < ANSWER_S


class AgentCall:
    """A running agent on one node. Every wait has a deadline; errors name the node.

    `untouched`: the directory of the expected job, if the node still has it unchanged. The agent has then ended and
    sends no further answers. `on_alive` is called with each sign of life, which may say how far the agent
    is. `on_close` gets the agent's input, and what the agent does next. `need_login_shell` is called if no agent seems
    to start, and raises if the reason is that the node's login shell runs nothing.
    """

    def __init__(
        self,
        node: Node,
        agent: AgentInput,
        bundle: Bundle,
        on_close: Callable[[AgentInput, Plan], None] = lambda agent, plan: agent.process.close(),
        need_login_shell: Callable[[Node], None] = lambda node: None,
    ) -> None:
        self.node = node
        self._bundle = bundle
        self._agent = agent
        self._process = agent.process
        self._on_close = on_close
        self._need_login_shell = need_login_shell
        self._plan: Plan = "ends"
        self._is_closed = False
        self._is_greeted = True
        self._left: float = math.inf
        self._has_answered = self._ended_well = False
        self.untouched: str | None = None
        self.on_alive: Callable[[Mapping[str, Any]], None] = lambda message: None
        self.op: object = None

    def begin(self, request: Mapping[str, Any], answer_s: float = ANSWER_S, data: bytes = b"") -> None:
        """Start the agent with its request and the bulk data that this announces. Install it first if it is missing."""
        self.op = request["op"]
        with self.bulk():
            greeting = self._greeting(boot_program() + _line(request), min(answer_s, ANSWER_S))
            self.untouched = greeting.get("untouched")
            if "need" in greeting:
                self.write(self._bundle.parcel)
            if data:
                self.write(data)

    def _greeting(self, program: bytes, answer_s: float) -> Any:
        """Return the first message of an agent that gets its program.

        Without one, another program may have replaced the agent and consumed its input. A caller in a hurry does not
        ask for that.
        """
        hurries = is_hurried(answer_s)
        doubt_s = answer_s if hurries else DOUBT_S
        try:
            self.write(program)
            return self.receive(doubt_s)
        except NodeError as exc:
            reason = exc.details.get("reason")
            known = (AGENT_ENDED, NO_AGENT) if hurries else (AGENT_ENDED, NO_AGENT, "deadline")
            if self._has_answered or not (self._ended_well or reason in known):
                raise
            self._explain_silence(exc)
            if reason != "deadline":
                raise
        return self.receive(answer_s - doubt_s)

    def _explain_silence(self, silence: NodeError) -> None:
        """Raise the error of the login shell, if it runs nothing. Whatever else fails says nothing about the agent."""
        try:
            self._need_login_shell(self.node)
        except NodeError as exc:
            if exc.details.get("reason") == "login_shell":
                raise exc from silence

    def begin_again(self, request: Mapping[str, Any], answer_s: float = ANSWER_S, data: bytes = b"") -> None:
        """Send another request to an agent that stayed. If this raises, the agent has not begun to serve it."""
        self.op = request["op"]
        self._left = math.inf
        with self.bulk():
            self._is_greeted = False
            self.send(request)
            self.receive(min(answer_s, AGAIN_S))
            self._is_greeted = True
            if data:
                self.write(data)

    def limit(self, most_bytes: int) -> None:
        """Let `receive` fail once the agent has sent more than this from now on, for messages that are collected."""
        self._left = most_bytes

    def bulk(self) -> AbstractContextManager[object]:
        """Send no heartbeats while in this context: for a message that announces bulk data, and the data."""
        return self._agent.turn

    def send(self, message: Mapping[str, Any]) -> None:
        self.write(_line(message))

    def write(self, data: bytes) -> None:
        """Write to the agent. If the agent has ended instead of reading, raise the error that it reported."""
        try:
            self._agent.write(data)
        except NodeError as exc:
            if exc.details.get("reason") == "input_closed":
                self._explain_end()
            raise

    def _explain_end(self) -> None:
        while True:
            self.receive()  # skip to the last line, which is raised if it is an error

    def receive(self, deadline_s: float | None = ANSWER_S) -> Any:
        """Return the agent's next message, an object. Raises the error it reports, or the reason why it ended early.

        Every sign of life restarts the deadline.
        """
        while True:
            line = self._process.readline(MAX_LINE, deadline_s=deadline_s)
            self._left -= len(line)
            if self._left < 0:
                raise NodeError("the node sends too much: it may run another program in place of the agent")
            try:
                value = parse(line)
            except ValueError:
                raise self._broken(line) from None
            if not isinstance(value, dict):
                raise self._broken(line)
            self._has_answered = True
            if "error" in value:
                raise self._error(value["error"])
            if value.get("alive") is not True:
                self._plan = _plan(value)
                return value
            self.on_alive(value)

    def result(self, deadline_s: float | None = ANSWER_S) -> Any:
        """Return the agent's final answer, an object, skipping the messages before it."""
        for _ in range(MOST_LINES):
            message = self.receive(deadline_s)
            if "done" in message:
                return dict(message["done"])
        raise self._broken(b"endless output")

    def read(self, count: int) -> bytes:
        """Return at least one and at most `count` bytes of bulk data."""
        data = self._process.read(count, deadline_s=ANSWER_S)
        if not data:
            raise self._broken(b"")
        return data

    def _error(self, error: Any) -> ClusterctlError:
        reported = error if isinstance(error, dict) else {"message": error}
        reason, hint, more = str(reported.get("kind")), reported.get("hint"), reported.get("details")
        kind = ERROR_KINDS.get(reason, NodeError)
        details = {**(more if isinstance(more, dict) else {}), "reason": reason}
        details.pop("nodes", None)  # only the control machine sets this
        message = str(reported.get("message"))[:MOST_WORDS]
        return kind(message, node=self.node.label, hint=str(hint)[:MOST_WORDS] if hint else None, details=details)

    def _broken(self, line: bytes) -> ClusterctlError:
        """Return the error for an agent that ended, or for a line that the agent did not print."""
        torn = line.startswith(b"{") and not line.endswith(b"\n")
        if line and not torn:
            text = line.decode(errors="replace").strip()[:200]
            hint = "make sure that no shell start-up file (such as ~/.bashrc) prints anything without a terminal"
            return NodeError(f"the agent answered with {text!r}", node=self.node.label, hint=hint)
        code = self._process.wait(ANSWER_S)
        if not self._is_greeted:
            message = "the idle agent has ended"
            return NodeError(message, node=self.node.label, details={"reason": AGENT_ENDED})
        if code == 0:  # an agent that ends well says so in its last line
            self._ended_well = True
            return self._process.lost()
        stderr = self._process.stderr_tail().decode(errors="replace").strip()[-400:]
        if code == 127:
            hint = "install python3 (3.9 or later) on the node, or set PYTHON in conf.py to its path"
            message = f"python was not found: {stderr}"
            return NodeError(message, node=self.node.label, hint=hint, details={"reason": NO_AGENT})
        absent = NO_MODULE.search(stderr)
        if absent and absent[1] in sys.stdlib_module_names:
            hint = "Debian's python3-minimal is not enough: install python3, or set PYTHON to a complete Python"
            message = f"the Python on the node is incomplete: it has no module {absent[1]}"
            return NodeError(message, node=self.node.label, hint=hint, details={"reason": NO_AGENT})
        over = "" if self.node.via == "ssh" else f" over {self.node.carrier}"  # it may have been the carrier
        message = f"the agent exited with code {code}{over}" + (f": {stderr}" if stderr else "")
        return NodeError(message, node=self.node.label, details={"reason": AGENT_ENDED})

    def close(self) -> None:
        """End the call. An agent that stays, if it has answered, is free for the next one. Safe to call again."""
        if not self._is_closed:
            self._is_closed = True
            self._on_close(self._agent, self._plan)

    def __enter__(self) -> AgentCall:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _plan(message: Mapping[str, Any]) -> Plan:
    if "done" not in message:
        return "ends"
    return "stays" if message.get("stays") is True else "holds" if message.get("holds") is True else "ends"


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
