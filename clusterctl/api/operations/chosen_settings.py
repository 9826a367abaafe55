"""Settings that are chosen for one run, over those of conf.py."""

from __future__ import annotations

from collections.abc import Iterable

from clusterctl.config.declarations import Setting
from clusterctl.config.settings import BY_SPELLING, TABLE
from clusterctl.errors import UsageError


def choosable() -> list[Setting]:
    """Return the settings that a run can change."""
    return [setting for setting in TABLE if not setting.fixed]


def choose(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the text of each setting, by the spelling given; the last one counts.

    Raises UsageError for settings that a run cannot change.
    """
    chosen: dict[str, str] = {}
    for name, text in pairs:
        setting = BY_SPELLING.get(name)
        if setting and setting.fixed:
            hint = f"change {setting.name} in conf.py, then dispatch again"
            raise UsageError(f"--set {name} is not possible: {setting.fixed}", hint=hint)
        for spelling in setting.spellings if setting else ():
            chosen.pop(spelling, None)
        chosen[name] = text
    return chosen
