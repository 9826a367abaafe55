"""VIA: the programs that carry commands to the nodes, and the words that each of them needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from clusterctl.config.parsers import text

EXAMPLE = '("docker", "exec", "-i", "{host}")'
FORMS = f'must be "ssh", "local", or a tuple of words with {{host}}, such as {EXAMPLE}'


class RequiredArgument(NamedTuple):
    """A word without which a carrier does not work, and why."""

    is_met: Callable[[Sequence[str]], bool]
    why: str


def _flag(letter: str, word: str) -> Callable[[Sequence[str]], bool]:
    form = re.compile(rf"-[a-zA-Z]*{letter}[a-zA-Z0-9]*|{word}(=true)?")
    return lambda words: any(form.fullmatch(one) for one in words)


_INTERACTIVE = _flag("i", "--interactive")
_STDIN = RequiredArgument(
    lambda words: "compose" in words or _INTERACTIVE(words),  # compose passes input on by itself
    "needs -i, or commands get no input",
)
_KUBECTL = (
    RequiredArgument(_flag("i", "--stdin"), "needs -i, or commands get no input"),
    RequiredArgument(
        lambda words: words[-1] == "--", 'must end with "--", or kubectl takes options of the command for its own'
    ),
)
NEEDS: dict[str, tuple[RequiredArgument, ...]] = {
    **dict.fromkeys(("docker", "podman", "nerdctl"), (_STDIN,)),
    **dict.fromkeys(("kubectl", "oc"), _KUBECTL),
    "srun": (
        RequiredArgument(_flag("u", "--unbuffered"), "needs -u, or srun holds back output after the last line end"),
    ),
}
#: Carriers that may end what a command has left behind when the command ends: a step of Slurm under cgroups.
LEAVE_NOTHING = ("srun",)
#: Carriers that send in the clear what passes through them, and so a run's keys.
IN_THE_CLEAR = ("srun", "mpirun", "mpiexec", "orterun", "prterun", "prun")


def parse_via(value: object) -> str | tuple[str, ...]:
    """Parse "ssh", "local", or the words of a carrier, in which `{host}` stands for the host."""
    if isinstance(value, str) and value in ("ssh", "local"):
        return value
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
        raise ValueError(FORMS)
    words = tuple(word if word == "" else text(word) for word in value)
    if not words or not words[0]:
        raise ValueError(FORMS)
    if not any("{host}" in word for word in words):
        raise ValueError(f"has no {{host}}, the place for the name of the host, as in {EXAMPLE}")
    for need in NEEDS.get(carrier_name(words), ()):
        if not need.is_met(words):
            raise ValueError(need.why)
    return words


def carrier_name(via: str | tuple[str, ...]) -> str:
    """Return the name of a carrier for messages: "ssh", "local", or that of its program."""
    return via if isinstance(via, str) else via[0].rpartition("/")[2]
