"""The nodes of a conf.py, and conversations with their agents."""

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
STALL_S = 120.0  # in which an agent takes nothing of what it is sent: longer than any disk rests
MAX_LINE = 32 << 20
MOST_LINES = 100_000  # before the last one
MOST_WORDS = 4000  # characters of an error of a node
AT_ONCE = 64
AGENT_ENDED = "agent_ended"
NONSENSE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
NO_MODULE = re.compile(r"No module named '(\w+)'")
ERROR_KINDS: Mapping[str, type[ClusterctlError]] = {
    "refused": RefusedError,
    "usage": UsageError,
}


class AgentCall:
    """One agent at work on one node. Every wait has a deadline; errors name the node.

    `untouched`: the directory of the job that was expected there; then the agent has ended, and answers nothing more.
    """

    def __init__(self, node: Node, process: RemoteProcess, bundle: Bundle) -> None:
        self.node = node
        self._bundle = bundle
        self._process = process
        self.untouched: str | None = None
        self.op: object = None

    def begin(self, request: Message, answer_s: float = ANSWER_S) -> None:
        """Boots the agent with its request, and installs it first where it is missing."""
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
        """Raises what the agent had to say when it has ended instead of reading."""
        try:
            self._process.write(data, stall_s=STALL_S)
        except NodeError as exc:
            if exc.details.get("reason") == "input_closed":
                self._explain_end()
            raise

    def _explain_end(self) -> None:
        while True:
            self.receive()  # lines on the way to the last one, which is raised when it is an error

    def receive(self, deadline_s: float | None = ANSWER_S) -> Message:
        """The agent's next line. Raises the error that it reports, or says why it ended without one.

        The deadline begins anew with every sign of life.
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
        """What the agent says last; lines before it are passed over."""
        for _ in range(MOST_LINES):
            message = self.receive(deadline_s)
            if "done" in message:
                return dict(message["done"])
        raise self._broken(b"without end")

    def read(self, count: int) -> bytes:
        """At least one and at most `count` bytes of bulk data."""
        data = self._process.read(count, deadline_s=ANSWER_S)
        if not data:
            raise self._broken(b"")
        return data

    def _error(self, error: Any) -> ClusterctlError:
        told = error if isinstance(error, dict) else {"message": error}
        reason, hint, more = str(told.get("kind")), told.get("hint"), told.get("details")
        kind = ERROR_KINDS.get(reason, NodeError)
        details = {**(more if isinstance(more, dict) else {}), "reason": reason}
        details.pop("nodes", None)  # that is for us to say
        words = str(told.get("message"))[:MOST_WORDS]
        return kind(words, node=self.node.label, hint=str(hint)[:MOST_WORDS] if hint else None, details=details)

    def _broken(self, line: bytes) -> ClusterctlError:
        """The program on the node ended, or something there prints what is not ours."""
        torn = line.startswith(b"{") and not line.endswith(b"\n")
        if line and not torn:
            text = line.decode(errors="replace").strip()[:200]
            hint = "does a start-up file of the shell print something? It must not without a terminal"
            return NodeError(f"the agent answered with {text!r}", node=self.node.label, hint=hint)
        code = self._process.wait(ANSWER_S)
        said = self._process.stderr_tail().decode(errors="replace").strip()[-400:]
        if code == 127:
            hint = "python3 (3.9 or later) must be on the node, or PYTHON in conf.py name it"
            return NodeError(f"python was not found: {said}", node=self.node.label, hint=hint)
        absent = NO_MODULE.search(said)
        if absent and absent[1] in sys.stdlib_module_names:
            hint = "Debian's python3-minimal is not enough: install python3 there, or let PYTHON name a whole one"
            return NodeError(f"python there is not whole: it has no {absent[1]}", node=self.node.label, hint=hint)
        message = f"the agent ended with code {code}" + (f": {said}" if said else "")
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
    """This user on this machine, for those who find a lock taken."""
    import socket

    from clusterctl.transport.ssh_config import local_user

    return f"{local_user()}@{socket.gethostname()}"


class Cluster:
    """The nodes that a command is about, and a transport to them. A context manager.

    `asked` tells whether it came to that: a plan asks nobody.
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
        """What the nodes need; read by whoever asks first, since some commands need none."""
        with self._lock:
            if self._made_bundle is None:
                self._made_bundle = Bundle()
            return self._made_bundle

    def warm_up(self) -> None:
        """Begins to connect to all nodes in the background, for a caller who must get ready before it asks them.

        Raises nothing: what goes wrong is met, or tried again, by the call that needs the connection. What is under
        way ends with this cluster.
        """
        self.transport.warm_up(self.nodes)

    def call(
        self, node: Node, request: Message, expected: tuple[str, str] | None = None, *, answer_s: float = ANSWER_S
    ) -> AgentCall:
        """Starts the agent on a node with a request. The caller closes the call.

        It ends at once where the `expected` job, as (id, owned name of its tree), is the newest and untouched.
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
        """Every node's answer to a request, in node order."""

        def one(node: Node) -> Message:
            with self.call(node, request(node) if callable(request) else request, answer_s=answer_s) as call:
                answer = call.result(answer_s)
            answers.check(str(call.op), answer)
            return answer

        return self.map(one, nodes)

    def map(
        self, work: Callable[[Node], T], nodes: Sequence[Node] | None = None, *, at_once: int = AT_ONCE
    ) -> list[NodeOutcome[T]]:
        """Every node's outcome, in node order; `work` is done for at most so many nodes `at_once`."""
        self.asked = True

        def careful(node: Node) -> T:
            try:
                return work(node)
            except NONSENSE as exc:
                raise senseless(node, exc) from exc

        return self.transport.map(self.nodes if nodes is None else nodes, careful, max_workers=at_once)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.transport.close()


def senseless(node: Node, exc: Exception) -> NodeError:
    """What a node said is not what it should be: one that lies, or is of another version, takes no others along."""
    hint = "is this machine still yours? --verbose shows where it was noticed"
    return NodeError(f"its answer makes no sense: {exc!r}"[:MOST_WORDS], node=node.label, hint=hint)


def failures(outcomes: Iterable[NodeOutcome[T]]) -> list[NodeOutcome[T]]:
    return [outcome for outcome in outcomes if not outcome.ok]


def raise_failures(outcomes: Sequence[NodeOutcome[T]], doing: str) -> list[T]:
    """The values of all nodes; raises one error that names every node that failed.

    An error that all nodes share, and one of which there is only one, is raised as it is.
    """
    failed = failures(outcomes)
    if not failed:
        return [outcome.get() for outcome in outcomes]
    raise combined([outcome.error for outcome in failed if outcome.error], len(outcomes), doing)


def combined(errors: Sequence[ClusterctlError], of: int, doing: str) -> ClusterctlError:
    """One error for several nodes' errors: the gravest exit code, every node and its remedy."""
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
    """A line per distinct message, with the nodes that it is about, and its remedy."""
    from clusterctl.inventory import fold

    groups: dict[tuple[str, str | None], list[str]] = {}
    for error in errors:
        groups.setdefault((error.message, error.hint), []).append(error.node or "?")
    lines = []
    for (message, hint), labels in groups.items():
        ids = [int(label[4:]) for label in labels if label[4:].isdigit()]
        who = f"node{fold(ids)}" if len(ids) == 1 else f"node[{fold(ids)}]"
        lines.append(f"  {who if ids else ', '.join(labels)}  {message}" + (f"\n      {hint}" if hint else ""))
    return lines
