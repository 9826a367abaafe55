"""The nodes of a conf.py, and calls to their agents."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from clusterctl.cluster import answers
from clusterctl.cluster.bundle import Bundle, boot_code
from clusterctl.common.safe_json import parse
from clusterctl.config import Settings
from clusterctl.errors import ClusterctlError, NodeError, RefusedError, UsageError
from clusterctl.inventory import Inventory, Node
from clusterctl.transport import Command, Outcome, RemotePath, RemoteProcess, Transport

T = TypeVar("T")
Message = dict[str, Any]
NodeOutcome = Outcome[Node, T]

FIRST_LINE = "import sys;i=sys.stdin.buffer;exec(i.read(int(i.readline())))"
ANSWER_S = 60.0
STALL_S = 120.0  # time limit for an agent that stops reading its input: longer than any disk stalls
MAX_LINE = 32 << 20
MOST_LINES = 100_000  # before the last one
MOST_WORDS = 4000  # characters of an error message from a node
AT_ONCE = 64
AGENT_ENDED = "agent_ended"
NONSENSE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
NO_MODULE = re.compile(r"No module named '(\w+)'")
ERROR_KINDS: Mapping[str, type[ClusterctlError]] = {
    "refused": RefusedError,
    "usage": UsageError,
}


class AgentCall:
    """A running agent on one node. Every wait has a deadline; errors name the node.

    `untouched`: the directory of the expected job, if the node still has it unchanged. The agent has then ended and
    answers nothing more.
    """

    def __init__(self, node: Node, process: RemoteProcess, bundle: Bundle) -> None:
        self.node = node
        self._bundle = bundle
        self._process = process
        self.untouched: str | None = None
        self.op: object = None

    def begin(self, request: Message, answer_s: float = ANSWER_S) -> None:
        """Start the agent with its request. Install the agent first if the node lacks it."""
        self.op = request["op"]
        code = boot_code()
        self.write(f"{len(code)}\n".encode() + code + _line(request))
        greeting = self.receive(min(answer_s, ANSWER_S))
        self.untouched = greeting.get("untouched")
        if "need" in greeting:
            data = self._bundle.data
            self.write(f"{len(data)}\n".encode() + data)

    def send(self, message: Message) -> None:
        self.write(_line(message))

    def write(self, data: bytes) -> None:
        """Write to the agent. If the agent has ended instead of reading, raise the error that it reported."""
        try:
            self._process.write(data, stall_s=STALL_S)
        except NodeError as exc:
            if exc.details.get("reason") == "input_closed":
                self._explain_end()
            raise

    def _explain_end(self) -> None:
        while True:
            self.receive()  # skip to the last line, which is raised if it is an error

    def receive(self, deadline_s: float | None = ANSWER_S) -> Message:
        """Return the agent's next message. Raises the error it reports, or explains why it ended without one.

        Every sign of life restarts the deadline.
        """
        message: Message = {"alive": True}
        while message == {"alive": True}:
            line = self._process.readline(MAX_LINE, deadline_s=deadline_s)
            try:
                message = parse(line)
            except ValueError:
                raise self._broken(line) from None
            if not isinstance(message, dict):
                raise self._broken(line)
        if "error" in message:
            raise self._error(message["error"])
        return message

    def result(self, deadline_s: float | None = ANSWER_S) -> Message:
        """Return the agent's final answer, skipping the messages before it."""
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
        stderr = self._process.stderr_tail().decode(errors="replace").strip()[-400:]
        if code == 127:
            hint = "install python3 (3.9 or later) on the node, or set PYTHON in conf.py to its path"
            return NodeError(f"python was not found: {stderr}", node=self.node.label, hint=hint)
        absent = NO_MODULE.search(stderr)
        if absent and absent[1] in sys.stdlib_module_names:
            hint = "Debian's python3-minimal is not enough: install python3, or set PYTHON to a complete Python"
            message = f"the Python on the node is incomplete: it has no module {absent[1]}"
            return NodeError(message, node=self.node.label, hint=hint)
        message = f"the agent exited with code {code}" + (f": {stderr}" if stderr else "")
        return NodeError(message, node=self.node.label, details={"reason": AGENT_ENDED})

    def close(self) -> None:
        self._process.close()

    def __enter__(self) -> AgentCall:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _line(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def who_asks() -> str:
    """Return USER@HOST of this user and machine, shown to others who find a lock taken."""
    import socket

    from clusterctl.transport.ssh_config import local_user

    return f"{local_user()}@{socket.gethostname()}"


class Cluster:
    """The nodes that a command works on, and a transport to them. A context manager.

    `asked` becomes True when a node is first asked; a plan asks none.
    """

    def __init__(self, settings: Settings, inventory: Inventory, nodes: Sequence[Node]) -> None:
        self.settings = settings
        self.inventory = inventory
        self.nodes = tuple(nodes)
        self.asked = False
        self.transport = Transport(settings)
        self._made_bundle: Bundle | None = None
        self._lock = threading.Lock()

    @property
    def _bundle(self) -> Bundle:
        """The code that the nodes need. It is read on first use, since some commands need none."""
        with self._lock:
            if self._made_bundle is None:
                self._made_bundle = Bundle()
            return self._made_bundle

    def warm_up(self) -> None:
        """Start to connect to all nodes in the background, for a caller that has to prepare before it asks them.

        Raises nothing: the call that needs a connection retries it or meets the error. Pending connections end with
        this cluster.
        """
        self.transport.warm_up(self.nodes)

    def call(
        self, node: Node, request: Message, expected: tuple[str, str] | None = None, *, answer_s: float = ANSWER_S
    ) -> AgentCall:
        """Start the agent on a node with a request. The caller closes the call.

        The agent ends at once if the `expected` job, as (id, owned name of its tree), is the newest and unchanged.
        """
        process = self.transport.open(node, self._agent_command(node, expected or ()))
        call = AgentCall(node, process, self._bundle)
        try:
            call.begin(request, answer_s)
        except BaseException:
            call.close()
            raise
        return call

    def _agent_command(self, node: Node, words: Sequence[str]) -> Command:
        python = self.settings.python
        program = RemotePath(python) if "/" in python else python
        argv = (program, "-I", "-S", "-c", FIRST_LINE, self._bundle.digest, node.root_dir, *words)
        return Command(argv, title="clusterctl's agent")

    def ask(
        self,
        request: Message | Callable[[Node], Message],
        nodes: Sequence[Node] | None = None,
        *,
        answer_s: float = ANSWER_S,
    ) -> list[NodeOutcome[Message]]:
        """Send a request to every node, and return the outcomes in node order."""

        def one(node: Node) -> Message:
            with self.call(node, request(node) if callable(request) else request, answer_s=answer_s) as call:
                answer = call.result(answer_s)
            answers.check(str(call.op), answer)
            return answer

        return self.map(one, nodes)

    def map(
        self, work: Callable[[Node], T], nodes: Sequence[Node] | None = None, *, at_once: int = AT_ONCE
    ) -> list[NodeOutcome[T]]:
        """Run `work` for every node, at most `at_once` at a time, and return the outcomes in node order."""
        self.asked = True

        def guarded(node: Node) -> T:
            try:
                return work(node)
            except NONSENSE as exc:
                raise senseless(node, exc) from exc

        return self.transport.map(self.nodes if nodes is None else nodes, guarded, max_workers=at_once)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.transport.close()


def senseless(node: Node, exc: Exception) -> NodeError:
    """Return the error for a malformed answer, so that a hostile or outdated node does not affect the others."""
    hint = "check whether this machine is still yours; --verbose shows where the check failed"
    return NodeError(f"its answer is malformed: {exc!r}"[:MOST_WORDS], node=node.label, hint=hint)


def failures(outcomes: Iterable[NodeOutcome[T]]) -> list[NodeOutcome[T]]:
    return [outcome for outcome in outcomes if not outcome.ok]


def raise_failures(outcomes: Sequence[NodeOutcome[T]], doing: str) -> list[T]:
    """Return the values of all nodes, or raise one error that names every failed node.

    The only error, or one that all nodes share, is raised unchanged.
    """
    failed = failures(outcomes)
    if not failed:
        return [outcome.get() for outcome in outcomes]
    raise combined([outcome.error for outcome in failed if outcome.error], len(outcomes), doing)


def combined(errors: Sequence[ClusterctlError], of: int, doing: str) -> ClusterctlError:
    """Combine the errors of several nodes into one: the most severe exit code, every node with its hint."""
    reasons = {error.details.get("reason") for error in errors}
    if reasons == {"no_job"} and len(errors) == of:
        return UsageError(errors[0].message, hint=errors[0].hint)
    details = {"nodes": [error.to_json() for error in errors]}
    errors = [error for error in errors if error.details.get("reason") != "no_job"] or errors
    if len(errors) == 1:
        only = errors[0]
        only.details = {**only.details, **details}
        return only
    kinds = {type(error) for error in errors}
    kind = kinds.pop() if len(kinds) == 1 else (RefusedError if RefusedError in kinds else NodeError)
    if kind is UsageError:
        return UsageError(errors[0].message, hint=errors[0].hint, details=details)
    lines = fold_errors(errors)
    return kind(f"{doing} failed on {len(errors)} of {of} nodes\n" + "\n".join(lines), details=details)


def fold_errors(errors: Sequence[ClusterctlError]) -> list[str]:
    """Return a line for each distinct message, with its nodes and its hint."""
    from clusterctl.inventory import fold

    groups: dict[tuple[str, str | None], list[str]] = {}
    for error in errors:
        groups.setdefault((error.message, error.hint), []).append(error.node or "?")
    lines = []
    for (message, hint), labels in groups.items():
        ids = [int(label[4:]) for label in labels if label[4:].isdigit()]
        nodes = f"node{fold(ids)}" if len(ids) == 1 else f"node[{fold(ids)}]"
        lines.append(f"  {nodes if ids else ', '.join(labels)}  {message}" + (f"\n      {hint}" if hint else ""))
    return lines
