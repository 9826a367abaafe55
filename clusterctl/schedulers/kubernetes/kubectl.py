"""kubectl on this machine: questions to the API server, each with a deadline, and errors in words."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from clusterctl.common.safe_json import parse
from clusterctl.errors import ClusterctlError, ConfigError, RefusedError, UnreachableError
from clusterctl.schedulers.programs import run

REQUEST_S = 20
DEADLINE_S = 60.0  # for all requests of a command together
WORDS_CHARS = 600


class Forbidden(UnreachableError):  # noqa: N818 - named for what the API server answers
    """This account may not do what a command needs."""


class Kubectl:
    """The kubectl that `environ` finds, for the cluster of its context. Safe to use from several threads.

    `namespace`: None means that of the context.
    """

    def __init__(
        self, environ: Mapping[str, str], namespace: str | None = None, deadline_s: float = DEADLINE_S
    ) -> None:
        self.namespace = namespace
        self._environ = {**environ, "LC_ALL": "C"}
        self._deadline_s = deadline_s

    @property
    def where(self) -> str:
        """The namespace for messages."""
        return f"in namespace {self.namespace}" if self.namespace else "in the namespace of kubectl's context"

    @property
    def option(self) -> str:
        """The option that names the namespace in hints, with a space before it."""
        return f" -n {self.namespace}" if self.namespace else ""

    def objects(self, kinds: str, selector: str) -> list[dict[str, Any]]:
        """Return the objects with these labels, as the API server describes them; `kinds` as in `pods,services`.

        Without any, in a namespace that does not exist, raises ConfigError.
        """
        found = self._listed("get", kinds, f"--selector={selector}")
        if not found and self.namespace:
            self._check_namespace(self.namespace)
        return found

    def events(self, kind: str, name: str) -> list[dict[str, Any]]:
        """Return the events about one object."""
        return self._listed("get", "events", f"--field-selector=involvedObject.kind={kind},involvedObject.name={name}")

    def create(self, manifest: str) -> None:
        """Create the objects of a manifest. Raises RefusedError if one of them exists."""
        self._ask("create", "-f", "-", text=manifest)

    def delete(self, kinds: str, selector: str) -> None:
        """Ask for the deletion of the objects with these labels, which may take a while."""
        self._ask("delete", kinds, f"--selector={selector}", "--wait=false", "--ignore-not-found")

    def _check_namespace(self, namespace: str) -> None:
        try:
            self._ask("get", "namespace", namespace, "-o", "name")
        except Forbidden:  # many accounts may not look at namespaces, and some of these exist
            return

    def _listed(self, *argv: str) -> list[dict[str, Any]]:
        text = self._ask(*argv, "-o", "json")
        try:
            items = parse(text)["items"]
        except (ValueError, TypeError, KeyError) as exc:
            raise UnreachableError(
                f"kubectl {_action(argv)} printed something else than a list of objects, or broke off",
                hint="try again; kubectl version shows which one it is",
            ) from exc
        return list(items)

    def _ask(self, *argv: str, text: str = "") -> str:
        options = ["-n", self.namespace] if self.namespace else []
        command = ["kubectl", *argv, *options, f"--request-timeout={REQUEST_S}s"]
        try:
            done = run(command, self._environ, text=text, deadline_s=self._deadline_s)
        except OSError as exc:
            raise ConfigError(
                f"cannot run kubectl: {exc.strerror or exc}",
                hint="install kubectl on this machine, or add its directory to PATH",
            ) from exc
        except subprocess.TimeoutExpired as exc:
            message = f"kubectl {_action(argv)} did not end within {self._deadline_s:g} s"
            raise UnreachableError(message, hint="try kubectl cluster-info") from exc
        if done.returncode:
            raise self._failure(argv, done.stderr)
        return done.stdout

    def _failure(self, argv: tuple[str, ...], stderr: str) -> ClusterctlError:
        """Return the error for a command that failed with these words."""
        for words in TABLE:
            if match := re.search(words.pattern, stderr):
                values = {**match.groupdict(""), "option": self.option, "action": _action(argv)}
                return words.kind(words.message.format(**values), hint=words.hint.format(**values))
        said = " ".join(stderr.split())[-WORDS_CHARS:] or "it printed nothing"
        return UnreachableError(f"kubectl {_action(argv)} failed: {said}")


def _action(argv: Sequence[str]) -> str:
    """Return what kubectl was to do: `get pods`, `create`."""
    return " ".join(word for word in argv[:2] if not word.startswith("-"))


class ErrorPattern(NamedTuple):
    """Words of kubectl on standard error, and the error that stands for them. Groups of the pattern are filled in."""

    kind: type[ClusterctlError]
    pattern: str
    message: str
    hint: str


#: The first match counts. What a quota or an admission controller refuses is "forbidden" too, as what an account may
#: not do is; the words after it tell them apart.
TABLE: tuple[ErrorPattern, ...] = (
    ErrorPattern(
        ConfigError,
        r'namespaces? "(?P<namespace>[^"]+)" not found',
        "there is no namespace {namespace}",
        "kubectl create namespace {namespace}, or name another in HOSTS",
    ),
    ErrorPattern(
        Forbidden,
        r'(?P<words>\S+ (?:"\S+" )?is forbidden: User .* cannot .*)',
        "this account may not do what kubectl {action} needs: {words}",
        "see what it may do: kubectl auth can-i --list{option}",
    ),
    ErrorPattern(
        ConfigError,
        r"\(Forbidden\): (?:error when creating \S+: )?(?P<words>.*)",
        "the API server refused kubectl {action}: {words}",
        "look at it with clusterctl submit --to kubernetes --plan, and change what the cluster does not allow",
    ),
    ErrorPattern(
        RefusedError,
        r"\(AlreadyExists\).*?: (?P<words>.*)",
        "the API server refused: {words}",
        "try again: each submission has a name of its own",
    ),
    ErrorPattern(
        ConfigError,
        r"unable to parse requirement: (?P<words>.*)",
        "HOSTS = kubernetes(...): the labels are malformed: {words}",
        'write them as for kubectl get --selector, such as "app=train"',
    ),
    ErrorPattern(
        ConfigError,
        r"connection to the server localhost:8080 was refused|no configuration has been provided"
        r"|context .* does not exist|current-context is not set",
        "kubectl knows no cluster on this machine",
        "set KUBECONFIG, or choose a context: kubectl config get-contexts",
    ),
    ErrorPattern(
        UnreachableError,
        r"Unauthorized|must be logged in|provide credentials",
        "the API server does not accept this account",
        "log in again; try kubectl auth whoami",
    ),
    ErrorPattern(
        UnreachableError,
        r"Unable to connect to the server|connection to the server .* was refused|no such host|i/o timeout"
        r"|deadline exceeded|Client\.Timeout|\((?:ServiceUnavailable|Timeout|ServerTimeout|TooManyRequests)\)",
        "the API server does not answer",
        "try kubectl cluster-info",
    ),
    ErrorPattern(
        ConfigError,
        r"is invalid:\s*(?P<words>.*)|(?:BadRequest|strict decoding error).*?: (?P<more>.*)",
        "the API server does not accept the manifest: {words}{more}",
        "look at it with clusterctl submit --to kubernetes --plan",
    ),
)
