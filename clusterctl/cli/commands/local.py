"""`clusterctl init`."""

from __future__ import annotations

from pathlib import Path

from clusterctl.cli.session import Session


def init(session: Session, directory: Path) -> None:
    from clusterctl.errors import RefusedError
    from clusterctl.templates import copy_workspace, template_conf

    conf, workspace = directory / "conf.py", directory / "workspace"
    for place in (conf, workspace):
        if place.exists():
            raise RefusedError(f"{place} exists already", hint="init overwrites nothing; choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    copy_workspace(workspace)
    conf.write_text(template_conf())
    session.console.document({"conf": str(conf), "workspace": str(workspace)})
    session.console.say(f"{conf}       your machines go into HOSTS")
    session.console.say(f"{workspace}/   a language model to begin with; its README.md tells how")
    session.console.say(
        f"next: cd {directory} && python3 workspace/prepare_data.py --shards 4, then clusterctl dispatch"
    )
