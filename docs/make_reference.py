"""The reference pages of the site, generated from the code: commands, their JSON
documents, settings, variables, exit codes, events.

The pages are Markdown with the directives of Sphinx, so that the search finds each option and setting by its name.
make_site.py adds them to the hand-written pages. Printed by

    python docs/make_reference.py
"""

from __future__ import annotations

import ast
import inspect
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, is_typeddict

import typer

from clusterctl import config, errors
from clusterctl.agent.supervisor import child_messages
from clusterctl.cli.arguments import GlobalOptions
from clusterctl.cli.declarations import app
from clusterctl.common import events
from clusterctl.common.engines import ENGINES
from clusterctl.common.schema import Record, required_keys, types_of
from clusterctl.config.declarations import Setting, Topic
from clusterctl.config.settings import TABLE
from clusterctl.documents.commands import COMMANDS
from clusterctl.documents.nodes import Printed
from clusterctl.inventory import build
from clusterctl.launch import plan

ROOT = Path(__file__).parents[1]
NOTE = "This page is generated from the code."
JOB = "JOB20261121-081530"
#: The variables that every command reads, beside those of SSH and of the terminal's size.
READ_BY_COMMANDS = {
    "CLUSTERCTL_CONF": "The conf.py, unless `--conf` names one. Default: `conf.py` in the current directory.",
    "NO_COLOR": "Any value: no colours.",
    "FORCE_COLOR": "Any value but `0`: colours, also without a terminal.",
    "TERM": "`dumb`: plain lines without colours, and nothing redraws itself.",
    "XDG_CACHE_HOME": "The directory of caches, such as that of `failed@last`. Default: `~/.cache`.",
}


def pages() -> dict[str, str]:
    """Return each page by its path on the site, without the ending."""
    return {
        "reference/commands": commands(),
        "reference/documents": json_documents(),
        "reference/settings": settings(),
        "reference/environment": environment(),
        "reference/exit-codes": exit_codes(),
        "reference/events": recorded_events(),
    }


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", *(part for part in parts if part)]) + "\n"


def directive(kind: str, argument: str, body: str, fence: str = "```") -> str:
    return f"{fence}{{{kind}}} {argument}\n{body}\n{fence}"


# Commands


def commands() -> str:
    group: Any = typer.main.get_command(app)
    own = [directive("option", spelled(option), described(option)) for option in group.params if is_global(option)]
    sections = [section(name, command) for name, command in leaves(group)]
    about = (
        f"{NOTE} [Commands](../commands.md) shows what each of them prints, and [JSON documents](documents.md) has the "
        "fields of `--json`."
    )
    head = ["## Global options", program(""), "They work before and after the command.", *own]
    return page("All commands and options", about, *head, *sections)


def is_global(option: Any) -> bool:
    return option.name in vars(GlobalOptions()) or option.name == "version"


def leaves(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for word, command in group.commands.items():
        name = f"{path} {word}".strip()
        if hasattr(command, "commands"):
            yield from leaves(command, name)
        elif not command.hidden:
            yield name, command


def section(name: str, command: Any) -> str:
    example = re.search(r"^Example: (.+)$", command.epilog, re.MULTILINE)
    assert example, name
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    usage = " ".join(["clusterctl", name, "[OPTIONS]", *(metavar(one) for one in arguments)])
    parts = [
        f"## {name}",
        program(name),
        inspect.cleandoc(command.help),
        f"```text\n{usage}\n```",
        *(f"`{one.metavar}`\n: {described(one)}" for one in arguments),
        *(directive("option", spelled(one), described(one)) for one in command.params if one not in arguments),
        f"```console\n$ {example[1]}\n```",
        f"More: [{name}](../commands.md#{name.replace(' ', '-')}).",
    ]
    return "\n\n".join(parts)


def program(name: str) -> str:
    return directive("program", f"clusterctl {name}".strip(), "")


def metavar(argument: Any) -> str:
    shown = f"{argument.metavar}..." if argument.nargs == -1 else str(argument.metavar)
    return shown if argument.required else f"[{shown}]"


def spelled(option: Any) -> str:
    value = "" if option.is_flag else f" {option.metavar or option.type.name.upper()}"
    return ", ".join(f"{word}{value}" for word in (*option.opts, *option.secondary_opts))


def described(parameter: Any) -> str:
    told = (parameter.help or "").removesuffix(".")
    shows = parameter.default not in (None, False, ()) and not callable(parameter.default) and "efault" not in told
    ends = [f"Default: `{parameter.default}`"] if shows else []
    return ". ".join([*([told] if told else []), *ends, ""]).strip()


# JSON documents


def json_documents() -> str:
    names = [name for name, _ in leaves(typer.main.get_command(app))]
    parts = dict.fromkeys(
        one for kind in (Printed, *FIRST_OF) for one in declarations_in(kind) if one not in (Printed, *FIRST_OF)
    )
    about = (
        f"{NOTE} It has the fields of what each command prints with `--json`. Fields in italics are left out where "
        "they do not apply. A number that is not finite is null. Readers must accept further fields. "
        "[Commands](../commands.md) has examples."
    )
    sections = [
        f"## Every document\n\n{described_document(Printed)}",
        *("\n\n".join([f"## {name}", *(document_of(name, kind) for kind in COMMANDS[name])]) for name in names),
        *(f"## {one.__name__}\n\n{described_document(one)}" for one in parts),
    ]
    return page("All JSON documents", about, *sections)


#: The command that is described with a document.
FIRST_OF = {kind: name for name, kinds in reversed(COMMANDS.items()) for kind in kinds}


def document_of(name: str, kind: Any) -> str:
    first = FIRST_OF[kind]
    same = f"It has the fields of [{first}](#{anchor(kind)})."
    return described_document(kind) if first == name else f"{told_about(kind)[0]} {same}".strip()


def anchor(kind: Any) -> str:
    return FIRST_OF.get(kind, kind.__name__).lower().replace(" ", "-")


def declarations_in(kind: Any) -> Iterator[Any]:
    """Yield a declaration and those of its parts; each of them may come several times."""
    if is_declaration(kind):
        yield kind
        inner = tuple(types_of(kind).values())
    else:
        inner = get_args(kind)
    for one in inner:
        yield from declarations_in(one)


def is_declaration(kind: Any) -> bool:
    return isinstance(kind, type) and (issubclass(kind, Record) or is_typeddict(kind))


def described_document(kind: Any) -> str:
    """Return what is said about a declaration, and a table of its fields."""
    said, comments = told_about(kind)
    needed, rows = always_there(kind), []
    for name, declared in types_of(kind).items():
        key = name.rstrip("_")
        field = f"`{key}`" if name in needed else f"*`{key}`*"
        rows.append(f"| {field} | {json_kind(declared)} | {comments.get(name, '')} |")
    return "\n\n".join([*([said] if said else []), "\n".join(["| field | type | |", "|---|---|---|", *rows])])


def always_there(kind: Any) -> frozenset[str]:
    if issubclass(kind, Record):
        return frozenset(one.name for one in fields(kind) if one.default is one.default_factory is MISSING)
    return required_keys(kind)


def told_about(kind: Any) -> tuple[str, dict[str, str]]:
    """Return the docstring of a declaration, and the comments beside its fields and those of its bases."""
    module = inspect.getmodule(kind)
    source = inspect.getsource(module) if module else ""
    found = [one for one in ast.parse(source).body if isinstance(one, ast.ClassDef) and one.name == kind.__name__]
    comments: dict[str, str] = {}
    for node in found:
        for base in node.bases:
            above = vars(module).get(base.id) if isinstance(base, ast.Name) else None
            comments |= told_about(above)[1] if is_declaration(above) and above is not Record else {}
        for field in node.body:
            beside = source.splitlines()[field.lineno - 1].partition("  # ")[2]
            if isinstance(field, ast.AnnAssign) and beside:
                comments[ast.unparse(field.target)] = beside
    return next((ast.get_docstring(node) or "" for node in found), ""), comments


def json_kind(kind: Any) -> str:
    """Return a type as readers of JSON know it."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return json_kind(inner[0])
    if origin in (Union, types.UnionType):
        return " or ".join(map(json_kind, inner))
    if origin in (list, tuple, Sequence):
        kinds = dict.fromkeys(json_kind(one) for one in inner if one is not ...)
        return f"array of {' and '.join(kinds)}"
    if origin in (dict, Mapping):
        return f"object of {json_kind(inner[1])}"
    if is_declaration(kind):
        return f"[{kind.__name__}](#{anchor(kind)})"
    return "anything" if kind in (Any, object) else JSON_TYPES["None" if kind is type(None) else kind.__name__]


# Settings


def settings() -> str:
    about = f"{NOTE} [conf.py](../configuration.md) explains the settings by subject, with examples."
    parts = {topic: [setting(one) for one in TABLE if one.topic is topic] for topic in Topic}
    return page("All settings", about, *(one for topic in Topic for one in (f"## {topic.value}", *parts[topic])))


def setting(one: Setting) -> str:
    notes = {
        f"Default: `{one.written}`.": one.name != "HOSTS",
        f"Old name: `{one.old}`.": bool(one.old),
        "Messages never show its value.": one.secret,
        "`start --resume` takes it from conf.py, not from the run before.": not one.kept,
        "Nodes do not learn it.": not one.recorded,
    }
    meaning = one.meaning[0].upper() + one.meaning[1:] + "."
    return directive("confval", one.name, " ".join([meaning, *(note for note, holds in notes.items() if holds)]))


# Variables


def environment() -> str:
    found = variables("clusterctl")
    parts = [
        f"{NOTE} It shows the variables of trainer 1 and of pserver 1 on the second of two nodes, 10.0.0.10 and "
        "10.0.0.11. [The runtime](../runtime.md#what-a-process-finds-in-its-environment) explains them, and "
        "[engines](../engines.md) those of other engines.",
        "## Of every process",
        *found.values(),
    ]
    for engine in ENGINES:
        more = {name: shown for name, shown in variables(engine).items() if name not in found}
        parts += [f'## With `ENGINE = "{engine}"`', *more.values()] if more else []
        found |= more
    ours = [directive("envvar", name, meaning) for name, meaning in READ_BY_COMMANDS.items()]
    return page("All environment variables", *parts, "## Read by commands", *ours)


def variables(engine: str) -> dict[str, str]:
    """Return the directive of each variable that a process of this engine gets."""
    values = {"HOSTS": ["10.0.0.10", "10.0.0.11"], "ROOT_DIR": "/data", "ENGINE": engine, "LD_LIBRARY_PATH": "/opt/lib"}
    made = config.from_values(values)
    given = {one["role"]: one["env"] for one in plan(made, build(made), ()).describe(JOB) if one["rank"] == 1}
    names = dict.fromkeys(name for env in given.values() for name in env)
    return {name: directive("envvar", name, examples(name, given)) for name in names}


def examples(name: str, given: dict[str, dict[str, str]]) -> str:
    values = {role: env[name] for role, env in given.items() if name in env}
    if len(set(values.values())) == 1 and len(values) == len(given):
        return f"`{next(iter(values.values()))}`"
    return "; ".join(f"{role}: `{value}`" if value else f"{role}: empty" for role, value in sorted(values.items()))


# Exit codes


def exit_codes() -> str:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind is not errors.ClusterctlError]
    rows = dict(re.findall(r"^\| `(\w+)`.*\| (\S.*?) +\|$", errors.__doc__ or "", re.MULTILINE))
    lines = ["| code | kind | when |", "|---|---|---|", "| 0 | | success |"]
    ours = [kind for kind in kinds if issubclass(kind, errors.ClusterctlError)]
    lines += [f"| {kind.exit_code} | `{kind.kind}` | {rows[kind.__name__]} |" for kind in ours]
    about = (
        "`kind` is a field of the error in `--json`. [Commands](../commands.md) lists which command uses which code."
    )
    return page("All exit codes", NOTE, "\n".join(lines), about)


# Events

JSON_TYPES = {
    "str": "string",
    "int": "integer",
    "Count": "integer",
    "Moment": "number",
    "float": "number",
    "bool": "boolean",
    "None": "null",
}
Classes = dict[str, ast.ClassDef]
Fields = dict[str, tuple[str, bool]]


def recorded_events() -> str:
    tree = ast.parse(inspect.getsource(events))
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    kinds: dict[str, list[ast.ClassDef]] = {}
    for node in classes.values():
        if name := event_name(node):
            kinds.setdefault(name, []).append(node)
    used = {word for node in classes.values() for kind, _ in members(node, classes).values() for word in words(kind)}
    free = [name for name in child_messages.FROM_PROCESSES if name not in kinds]
    parts = [
        f"{NOTE} Each node keeps the events of a run in `.clusterctl/runs/RUN/events.jsonl` of the job directory, one "
        "JSON object per line; an attached `start --json` prints them as they come.",
        "Every event has `v`, `t` (seconds since 1970), `seq`, `node` and `event`, its name. One that is about a "
        "process also has `role`, `rank` and `attempt`. Readers must accept unknown events and fields, and missing "
        "ones: fields may change between versions. Fields in italics are left out where they do not apply.",
        *(f"## {name}\n\n{described_event(kinds[name], classes)}" for name in sorted(kinds)),
        f"## Events of processes\n\nProcesses report {listed(free)} themselves. In `step` and `pass`, "
        f"{listed(child_messages.FIGURES)} are numbers.",
        *(f"## {name}\n\n{described_event([classes[name]], classes)}" for name in classes if name in used),
    ]
    return page("All events", *parts)


def event_name(node: ast.ClassDef) -> str | None:
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and ast.unparse(field.target) == "event":
            return (
                str(ast.literal_eval(field.annotation.slice)) if isinstance(field.annotation, ast.Subscript) else None
            )
    return None


def described_event(nodes: list[ast.ClassDef], classes: Classes) -> str:
    """Return what is said about an event, and a table of its fields. `nodes` are its forms."""
    said = [text for node in nodes for one in lineage(node, classes) if (text := ast.get_docstring(one))]
    forms = [members(node, classes) for node in nodes]
    rows = []
    for name in dict.fromkeys(name for form in forms for name in form if name != "event"):
        kinds, needed = zip(*(form[name] for form in forms if name in form), strict=True)
        shown = f"`{name}`" if all(needed) and len(needed) == len(forms) else f"*`{name}`*"
        rows.append(f"| {shown} | {json_type(kinds[0])} |")
    return "\n\n".join([*dict.fromkeys(said), "\n".join(["| field | type |", "|---|---|", *rows])])


def lineage(node: ast.ClassDef, classes: Classes) -> list[ast.ClassDef]:
    """Return a class and those that it inherits from."""
    bases = [classes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in classes]
    return [node, *(above for base in bases for above in lineage(base, classes))]


def members(node: ast.ClassDef, classes: Classes) -> Fields:
    """Return the type of each field, and True if it is always there."""
    found: Fields = {}
    for one in reversed(lineage(node, classes)):
        total = not any(word.arg == "total" for word in one.keywords)
        for field in one.body:
            if isinstance(field, ast.AnnAssign):
                kind = ast.unparse(field.annotation)
                optional = re.fullmatch(r"NotRequired\[(.+)\]", kind)
                found[ast.unparse(field.target)] = (optional[1], False) if optional else (kind, total)
    return found


def words(kind: str) -> list[str]:
    return re.findall(r"\w+", kind)


def json_type(kind: str) -> str:
    """Return a type as readers of JSON know it: `Sequence[int] | None` is "array of integer or null"."""
    if inner := re.fullmatch(r"Sequence\[(.+)\]", kind):
        return f"array of {json_type(inner[1])}"
    return " or ".join(JSON_TYPES.get(one) or f"[{one}](#{one.lower()})" for one in kind.split(" | "))


def listed(names: Any) -> str:
    *most, last = [f"`{name}`" for name in names]
    return f"{', '.join(most)} and {last}"


if __name__ == "__main__":
    import sys

    sys.stdout.write("\n".join(pages().values()))
