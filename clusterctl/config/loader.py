"""Build `Settings` from conf.py, the environment and the command line, reporting every mistake at once."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from clusterctl.config import source
from clusterctl.config.declarations import Setting
from clusterctl.config.findings import ConfMistake, config_error
from clusterctl.config.host_sources import HostSource
from clusterctl.config.hosts import Host, read_hosts
from clusterctl.config.parsers import shown
from clusterctl.config.settings import BY_SPELLING, TABLE, Settings
from clusterctl.config.source import ConfFile
from clusterctl.config.values import OUR_ENGINE, QUANTIZED, RETIRED
from clusterctl.errors import UsageError

_NOTHING: Mapping[str, object] = MappingProxyType({})
_NONE_CHOSEN: Mapping[str, str] = MappingProxyType({})
COMMAND_LINE = "command line"
_ACCEPTED = BY_SPELLING.keys() | RETIRED.keys()


def load(
    path: Path | None,
    environ: Mapping[str, str],
    *,
    overrides: Mapping[str, object] = _NOTHING,
    chosen: Mapping[str, str] = _NONE_CHOSEN,
) -> Settings:
    """Load the settings of the conf.py at `path` (None: CLUSTERCTL_CONF of `environ`, else ./conf.py).

    `overrides` are settings from the command line, by name; they take precedence over the file. So do those `chosen`
    with `--set`, each as text: a Python literal, else a string. `environ` also provides HOME, for `~` in paths on this
    machine; relative paths start at the directory of conf.py.
    Raises ConfigError with one line per mistake in its message, and the same as `findings` in its details.
    """
    return read(path, environ).settings(environ, overrides=overrides, chosen=chosen)


@dataclass(frozen=True)
class Conf:
    """A conf.py that has run to its end. Its values are not checked yet."""

    path: Path
    source: ConfFile

    def settings(
        self,
        environ: Mapping[str, str],
        *,
        overrides: Mapping[str, object] = _NOTHING,
        chosen: Mapping[str, str] = _NONE_CHOSEN,
    ) -> Settings:
        """Return its settings, as `load` does."""
        return _settle(self.source, self.path, environ, overrides, chosen)


def read(path: Path | None, environ: Mapping[str, str]) -> Conf:
    """Run the conf.py that `load` would take. Raises ConfigError if it is missing, is not Python, or raises."""
    path = path or Path(environ.get("CLUSTERCTL_CONF") or "conf.py")
    return Conf(path, source.run(path))


def from_values(values: Mapping[str, object], environ: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """Return the settings of a conf.py that contains only `values`; for programs and tests. Raises ConfigError."""
    return _settle(ConfFile("settings", values), None, environ)


def _literal(text: str) -> object:
    """Return the value of a Python literal; other text as it is."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


class _Reading:
    """One pass over raw values that collects parsed values and findings."""

    def __init__(self, conf: ConfFile, chosen: Mapping[str, str]) -> None:
        self.conf = conf
        self.chosen = {BY_SPELLING[name].name: text for name, text in chosen.items() if name in BY_SPELLING}
        self._options = {name: f"--set {name}" for name in chosen}
        self.values: dict[str, Any] = {}
        self.findings: list[ConfMistake] = []

    def report(self, file: str, key: str, message: str, line: int | None = None, hint: str | None = None) -> None:
        shown_key = self._options.get(key, key) if file == COMMAND_LINE else key
        self.findings.append(ConfMistake(file, line, key, f"{shown_key}{message}", hint))

    def report_in_conf(self, key: str, message: str, hint: str | None = None) -> None:
        """Report a mistake in conf.py, at the line that assigns `key`."""
        self.report(self.conf.file, key, message, self.conf.lines.get(key), hint)

    def report_where_set(self, setting: Setting, message: str) -> None:
        """Report a mistake in the option or the line that sets `setting`."""
        option = next((name for name in setting.spellings if name in self._options), None)
        if option is not None:
            self.report(COMMAND_LINE, option, message)
        else:
            key = next((name for name in setting.spellings if name in self.conf.values), setting.name)
            self.report_in_conf(key, message)

    def take(self, file: str, given: Mapping[str, object]) -> None:
        """Parse the settings among `given`; later calls override earlier ones."""
        lines = self.conf.lines if file == self.conf.file else {}
        for name, raw in given.items():
            setting = BY_SPELLING.get(name)
            if setting is None:
                continue
            value = "" if setting.secret else shown(raw)
            try:
                self.values[setting.name] = setting.parse(raw)
            except ValueError as exc:
                self.report(file, name, f"{value}: {exc}", lines.get(name))


def _settle(
    conf: ConfFile,
    path: Path | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, object] = _NOTHING,
    chosen: Mapping[str, str] = _NONE_CHOSEN,
) -> Settings:
    reading = _Reading(conf, chosen)
    overrides = {**overrides, **{name: _literal(text) for name, text in chosen.items()}}
    reading.values = {setting.name: setting.parse(setting.default) for setting in TABLE}
    _report_unknown(reading, overrides)
    _report_contradictions(reading)
    reading.take(conf.file, conf.values)
    reading.take(COMMAND_LINE, overrides)
    if reading.values["ENGINE"] != OUR_ENGINE and not {"RESTARTS"} & {*conf.values, *overrides}:
        reading.values["RESTARTS"] = BY_SPELLING["RESTARTS"].parse(0)
    hosts = reading.values["HOSTS"]
    reading.values["HOSTS"] = _hosts(reading, "HOSTS" in overrides)
    _report_combinations(reading)
    _resolve_paths(reading, path.absolute().parent if path else Path.cwd(), environ)
    if reading.findings:
        raise config_error(sorted(reading.findings, key=_position))
    fields = {setting.field: reading.values[setting.name] for setting in TABLE}
    lines = {setting.name: conf.lines[n] for setting in TABLE for n in setting.spellings if n in conf.lines}
    hosts_from = hosts if isinstance(hosts, HostSource) else None
    return Settings(
        **fields,
        hosts_from=hosts_from,
        source=path,
        lines=lines,
        chosen=reading.chosen,
        warnings=_retired(conf, overrides),
    )


def _position(finding: ConfMistake) -> tuple[bool, int]:
    """Return a sort key: findings with a line come first, in file order."""
    return finding.line is None, finding.line or 0


def _report_unknown(reading: _Reading, overrides: Mapping[str, object]) -> None:
    conf = reading.conf
    for name, value in conf.values.items():
        imported = name in conf.imported or ("*" in conf.imported and name not in conf.lines)
        if name not in _ACCEPTED and not imported and not _is_code(value):
            hint = "see conf.py.example for all settings; use lower case for your own names"
            reading.report_in_conf(name, f" is not a setting{_suggestion(name)}", hint)
    for name in overrides:
        if name not in _ACCEPTED:
            reading.report(COMMAND_LINE, name, f" is not a setting{_suggestion(name)}")


def _retired(conf: ConfFile, overrides: Mapping[str, object]) -> tuple[str, ...]:
    """Return a warning for each setting of an earlier version that is assigned."""
    warnings = []
    for name in sorted(RETIRED.keys() & {*conf.values, *overrides}):
        line = f":{conf.lines[name]}" if name in conf.lines else ""
        where = "" if name in overrides else f"{conf.file}{line}: "
        warnings.append(f"{where}{name} no longer has an effect; {RETIRED[name]}")
    return tuple(warnings)


def _is_code(value: object) -> bool:
    """Return True for modules, classes and functions, which cannot be meant as settings."""
    return isinstance(value, ModuleType) or callable(value)


def _suggestion(name: str) -> str:
    bare = name.upper().removeprefix("PADDLE_")
    near = [bare] if bare in BY_SPELLING else difflib.get_close_matches(name.upper(), BY_SPELLING, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _report_contradictions(reading: _Reading) -> None:
    """Report settings whose old and new names are both assigned, with different values."""
    given, lines = reading.conf.values, reading.conf.lines
    for setting in TABLE:
        if not (setting.old and setting.name in given and setting.old in given):
            continue
        first, second = sorted(setting.spellings, key=lambda name: lines.get(name, 0))
        if _parsed(setting, given[first]) != _parsed(setting, given[second]):
            message = f"{shown(given[second])} contradicts {first}{shown(given[first])}"
            hint = f"{setting.name} is the new name of {setting.old}; keep only one of them"
            reading.report_in_conf(second, message, hint)


def _parsed(setting: Setting, raw: object) -> object:
    try:
        return setting.parse(raw)
    except ValueError:
        return raw


def _hosts(reading: _Reading, overridden: bool) -> tuple[Host, ...]:
    if isinstance(origin := reading.values["HOSTS"], HostSource):
        if problem := origin.problem():
            reading.report_in_conf("HOSTS", f" {problem}")
        return ()
    conf, raw = reading.conf, reading.values["HOSTS"]
    hosts, problems = read_hosts(raw, reading.values["ROOT_DIR"], reading.values["VIA"])
    if not hosts and not problems:
        problems = [(None, "is empty" if "HOSTS" in conf.values else "is missing")]
    listed = isinstance(raw, list | tuple) and len(conf.host_lines) == len(raw)
    for index, message in problems:
        key = "HOSTS" if index is None else f"HOSTS[{index}]"
        hint = 'write HOSTS = ["root@10.0.0.10", "root@10.0.0.11"]' if index is None else None
        line = conf.host_lines[index] if listed and index is not None else conf.lines.get("HOSTS")
        if overridden:
            reading.report(COMMAND_LINE, key, f" {message}", hint=hint)
        else:
            reading.report(conf.file, key, f" {message}", line, hint)
    return hosts


def _report_combinations(reading: _Reading) -> None:
    """Report settings that are valid on their own but not together."""
    values = reading.values
    ports = values["PSERVERS_PER_NODE"] * (values["PORTS_NUM"] + values["PORTS_NUM_FOR_SPARSE"])
    if values["PORT"] + ports > 65536:
        message = f"{shown(values['PORT'])} leaves no room for the {ports} ports of a node's pservers"
        reading.report_where_set(BY_SPELLING["PORT"], message)
    if values["HEARTBEAT_S"] >= values["NODE_GRACE_S"]:
        message = f"{shown(values['HEARTBEAT_S'])} must be less than NODE_GRACE_S"
        reading.report_where_set(BY_SPELLING["HEARTBEAT_S"], message)
    if values["WIRE"] in QUANTIZED and str(values["MODE"]) != "sync":
        reading.report_where_set(BY_SPELLING["WIRE"], f'{shown(values["WIRE"])} needs MODE = "sync"')


def _resolve_paths(reading: _Reading, base: Path, environ: Mapping[str, str]) -> None:
    """Make paths on this machine absolute: `~` is HOME, and relative paths start at `base`."""

    def resolve(value: Path, key: str) -> Path:
        if value.parts[:1] == ("~",) and environ.get("HOME"):
            value = Path(environ["HOME"], *value.parts[1:])
        try:
            return base / value.expanduser()
        except RuntimeError:
            message = f"{shown(str(value))}: there is no home directory {value.parts[0]}"
            reading.report_where_set(BY_SPELLING[key], message)
            return value

    for name, value in reading.values.items():
        if isinstance(value, Path):
            reading.values[name] = resolve(value, name)

    def resolve_program(via: Any, key: str) -> Any:
        """A program with a slash in its name is a path, too."""
        if isinstance(via, tuple) and "/" in via[0]:
            return (str(resolve(Path(via[0]), key)), *via[1:])
        return via

    reading.values["VIA"] = resolve_program(reading.values["VIA"], "VIA")
    hosts: tuple[Host, ...] = reading.values["HOSTS"]
    reading.values["HOSTS"] = tuple(
        replace(
            host,
            identity=resolve(host.identity, "HOSTS") if host.identity else None,
            via=resolve_program(host.via, "HOSTS"),
        )
        for host in hosts
    )


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
