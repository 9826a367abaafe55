"""`clusterctl why`: the first cause of a run's end, what followed from it, and what to do."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from clusterctl.cli.causes import headline, incident_line
from clusterctl.cli.console import Console, clean, human_time
from clusterctl.cli.invocation import Session, job_ref
from clusterctl.cluster.answers import END_OF_TIME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.observe.why.evidence import Incident
    from clusterctl.observe.why.report import Why

SHOWN = 5  # of what followed, and of what was survived
STATE_WORDS = {
    "stopped": "was stopped",
    "lost": "is lost",
    "unknown": "is in an unknown state",
    "running": "is running",
    "starting": "is starting",
}


def why(session: Session, job: str | None) -> None:
    from clusterctl.observe.status import unheard
    from clusterctl.observe.why.report import to_json
    from clusterctl.observe.why.report import why as ask

    with session.whole_cluster() as cluster:
        found = ask(cluster, job_ref(cluster.settings, job))
        if not session.console.json:
            _show(session.console, found)
        session.console.finish(to_json(found), unheard(found.errors, len(cluster.nodes)))


def _show(console: Console, found: Why) -> None:
    known = found.explanation
    console.say(_first_line(found))
    if known.cause is not None and known.cause.kind != "stopped":
        _show_cause(console, found, known.cause)
    elif found.state in ("failed", "lost", "unknown"):
        console.say("what was asked does not tell a cause; clusterctl logs shows what the processes wrote")
    still = "now" if found.state in ("starting", "running") else "at the end"
    for word, some in (("before", known.before), (still, known.open)):
        _show_some(console, found, word, some)
    for one in known.open:
        if one.awaited:
            who = one.process or f"node{one.node}"
            rejoin = f"clusterctl start --rejoin --job_workspace {found.job} --only node{one.node}"
            console.say(f"what to do: the run waits for {who}; when it is mended: {rejoin}")
    _show_next(console, found)


def _first_line(found: Why) -> str:
    known = found.explanation
    if found.members.run is None:
        return f"{found.job} was never started"
    words = STATE_WORDS.get(found.state, found.state)
    took = f"{'for' if found.state in ('running', 'starting') else 'after'} {human_time(found.seconds or 0.0)}"
    at = f" · pass {known.pass_}, step {known.step:,}" if known.step is not None and known.pass_ is not None else ""
    if found.state in ("starting", "running") and known.cause is not None:
        words = "is being stopped"
    line = f"{found.job} run {int(found.members.run)} {words} {took}{at}"
    if known.cause is None and not known.open and found.state in ("running", "starting", "succeeded"):
        line += f"; nothing has failed{' for good' if known.before else ''}"
    elif found.state == "stopped" and (known.cause is None or known.cause.kind == "stopped"):
        line += "; by the user, which is no failure"
    return line


def _show_cause(console: Console, found: Why, cause: Incident) -> None:
    from clusterctl.observe.why.report import advice

    console.say(f"first cause: {headline(found, cause)}")
    for t, line in cause.lines:
        console.say(f"  {_moment(t)}  {clean(line)}")
    for note in found.explanation.notes:
        console.say(f"  {note}")
    others = [f"{one.process}@node{one.node}" for one in found.explanation.alike]
    if others:
        console.say(f"the same way: {', '.join(others[:SHOWN])}{_more(others)}")
    _show_some(console, found, "then", found.explanation.then)
    for line in _left(found):
        console.say(line)
    remedy = advice(found)
    if remedy:
        console.say(f"what to do: {remedy}")


def _show_some(console: Console, found: Why, word: str, some: Sequence[Incident]) -> None:
    for number, one in enumerate(some[:SHOWN]):
        begin = f"{word}: " if number == 0 else " " * (len(word) + 2)
        more = _more(some) if number == SHOWN - 1 else ""
        console.say(f"{begin}{_moment(one.onset)}  {incident_line(found, one)}{more}")


def _more(some: Sequence[object]) -> str:
    return f" (and {len(some) - SHOWN} more)" if len(some) > SHOWN else ""


def _left(found: Why) -> list[str]:
    known, total = found.explanation, len(found.members.nodes)
    words = []
    if known.stopped:
        other = "other " if known.cause and known.cause.process else ""
        words.append(f"{known.stopped} {other}process{'es were' if known.stopped > 1 else ' was'} stopped")
    if known.not_heard_of == ():
        words.append(f"nothing is left running on {total}/{total} nodes")
    elif known.not_heard_of:
        words.append(f"no word from node {list(known.not_heard_of)}")
    return [f"then: {'; '.join(words)}"] if words else []


def _show_next(console: Console, found: Why) -> None:
    last = found.explanation.checkpoint
    if found.members.run is None:
        console.say(f"next: clusterctl start --job_workspace {found.job}")
    elif last and found.state in ("failed", "lost", "stopped"):
        resume = f"clusterctl start --job_workspace {found.job} --resume"
        console.say(f"last checkpoint: {last['tag']}     next: {resume}")


def _moment(t: float) -> str:
    return datetime.datetime.fromtimestamp(min(max(t, 0.0), END_OF_TIME)).strftime("%H:%M:%S.%f")[:-3]
