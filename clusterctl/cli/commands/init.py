"""`clusterctl init`."""

from __future__ import annotations

from pathlib import Path

from clusterctl.cli.console import Console
from clusterctl.documents.local import InitDocument
from clusterctl.errors import RefusedError, UsageError
from clusterctl.templates import TEMPLATES, copy_workspace, template_conf


def init(console: Console, directory: Path, template: str) -> None:
    if template not in TEMPLATES:
        raise UsageError(f"unknown --template {template}", hint=f"choose one of {', '.join(TEMPLATES)}")
    conf, workspace = directory / "conf.py", directory / "workspace"
    for path in (conf, workspace):
        if path.exists():
            raise RefusedError(f"{path} already exists", hint="init never overwrites; choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    copy_workspace(workspace, template)
    conf.write_text(template_conf(template))
    document: InitDocument = {"conf": str(conf), "workspace": str(workspace)}
    console.document(document)
    console.say(f"{conf}       list your machines in HOSTS")
    console.say(f"{workspace}/   {TEMPLATES[template].summary} to start from; see its README.md")
    prepare = f"python3 workspace/{TEMPLATES[template].prepare}"
    console.say(f"next: cd {directory} && {prepare}, then clusterctl dispatch")
