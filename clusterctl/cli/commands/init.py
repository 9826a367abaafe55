"""`clusterctl init`."""

from __future__ import annotations

from pathlib import Path

from clusterctl.cli.invocation import Session


def init(session: Session, directory: Path, template: str) -> None:
    from clusterctl.errors import RefusedError, UsageError
    from clusterctl.templates import TEMPLATES, copy_workspace, template_conf

    if template not in TEMPLATES:
        raise UsageError(f"--template {template} is not known", hint=f"one of {', '.join(TEMPLATES)}")
    conf, workspace = directory / "conf.py", directory / "workspace"
    for place in (conf, workspace):
        if place.exists():
            raise RefusedError(f"{place} exists already", hint="init overwrites nothing; choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    copy_workspace(workspace, template)
    conf.write_text(template_conf(template))
    session.console.document({"conf": str(conf), "workspace": str(workspace)})
    session.console.say(f"{conf}       your machines go into HOSTS")
    session.console.say(f"{workspace}/   {TEMPLATES[template].summary} to begin with; its README.md tells how")
    session.console.say(
        f"next: cd {directory} && python3 workspace/prepare_data.py --shards 4, then clusterctl dispatch"
    )
