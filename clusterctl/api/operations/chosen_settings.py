"""Settings that are chosen for one run, over those of conf.py."""

from __future__ import annotations

from collections.abc import Iterable

from clusterctl.config.declarations import BY_SPELLING, TABLE, Setting
from clusterctl.errors import UsageError

#: The settings that a run cannot change, and why.
DECIDED = {
    "HOSTS": "the job was dispatched to the hosts in conf.py, and status, logs and stop look for it there",
    "ROOT_DIR": "the job was dispatched to that of conf.py, and status, logs and stop look for it there",
    "SHARDS": "dispatch has already divided the data among the nodes",
}


def choosable() -> list[Setting]:
    """Return the settings that a run can change."""
    return [setting for setting in TABLE if setting.name not in DECIDED]


def choose(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the text of each setting, by the spelling given; the last one counts. Raises UsageError for DECIDED."""
    chosen: dict[str, str] = {}
    for name, text in pairs:
        setting = BY_SPELLING.get(name)
        key = setting.name if setting else name
        if key in DECIDED:
            hint = f"change {key} in conf.py, then dispatch again"
            raise UsageError(f"--set {name} is not possible: {DECIDED[key]}", hint=hint)
        for spelling in setting.spellings if setting else ():
            chosen.pop(spelling, None)
        chosen[name] = text
    return chosen
