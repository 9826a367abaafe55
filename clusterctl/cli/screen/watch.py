"""The live screen of `status --watch`: entered and left at any time, without an effect on the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from clusterctl.cli.console import Console
from clusterctl.cli.screen.keys import Pressed, keys
from clusterctl.cli.screen.log_feed import LogFeed
from clusterctl.cli.screen.screen import Screen
from clusterctl.cluster import Cluster
from clusterctl.observe.follow import Follower, News
from clusterctl.observe.record.curves import shifted
from clusterctl.observe.record.history import NodeCurves, read_curves
from clusterctl.observe.record.live import LiveRecord
from clusterctl.observe.record.marks import by_our_clock
from clusterctl.observe.record.status import JobStatus

BUCKETS = 200
HINT = "q leaves; the run continues"


def watch(console: Console, cluster: Cluster, current: JobStatus, title: str) -> bool:
    """Show a run until it has ended, and return True, or until the user leaves with `q` or Ctrl-C."""
    from clusterctl.cli.screen.rich_display import RichDisplay

    known = _ask(cluster, current)
    offsets = {node: one.offset_s for node, one in known.items()}
    started = (current.lead or {}).get("started")
    started_t = None if started is None else started + offsets.get(current.members.lead, 0.0)
    screen = Screen(_record(current, known), title, HINT, started_t=started_t)
    at = {node: one.at for node, one in known.items()}
    try:
        with (
            keys(wanted=True) as pressed,
            RichDisplay(console, screen.lines, own_screen=True) as display,
            Follower(cluster, current.members.nodes, current.job, current.run, {"role": ""}, at=at) as follower,
        ):
            return _follow(follower, screen, offsets, pressed, LogFeed(screen, follower), display.refresh)
    except KeyboardInterrupt:
        return False


def _ask(cluster: Cluster, current: JobStatus) -> dict[int, NodeCurves]:
    """Return the curves of the run until now, by node."""
    ask = partial(read_curves, cluster, job=current.job, run=current.run, buckets=BUCKETS)
    return {outcome.node.id: outcome.get() for outcome in cluster.map(ask, current.members.nodes) if outcome.ok}


def _record(current: JobStatus, known: Mapping[int, NodeCurves]) -> LiveRecord:
    """Return the record of the run until now."""
    record = LiveRecord(current.members.nodes)
    curves = [shifted(curve, one.offset_s) for one in known.values() for curve in one.curves]
    dropped, lead = current.cut_dropped, known.get(current.members.lead)
    if dropped is not None and lead is not None:
        dropped = {**dropped, "t": dropped["t"] + lead.offset_s}
    warnings = by_our_clock(current.warnings, lead.offset_s) if lead is not None else current.warnings
    record.begin_from(current.processes, (current.lead or {}).get("phase"), curves, dropped, warnings)
    return record


def _follow(
    news: Iterable[News | None],
    screen: Screen,
    offsets: Mapping[int, float],
    pressed: Pressed,
    log_feed: LogFeed,
    redraw: Callable[[], None],
) -> bool:
    """Take news and keys; return True if the run has ended, False if the user leaves."""
    for one in news:
        if one is not None:
            _take(screen, one, offsets.get(one.node.id, 0.0))
            log_feed.take(one)
        for key in pressed():
            if key in ("q", "Q"):
                return False
            if screen.press(key):
                log_feed.update()
                redraw()
    return True


def _take(screen: Screen, news: News, offset_s: float) -> None:
    for event in news.events:
        screen.record.take({**event, "t": event["t"] + offset_s})
    if news.error is not None:
        screen.notices[news.node.label] = str(news.error)
    elif news.back:
        screen.notices.pop(news.node.label, None)
