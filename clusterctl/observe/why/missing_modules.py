"""A module that a program could not import, compared with the requirements of its job."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from clusterctl.common.requirements import FILE, RUNTIME, normal
from clusterctl.observe.why.errno_and_signals import Diagnosis

CLASS = "ModuleNotFoundError"
ON_PATH = "add its directory to PYTHONPATH in ENV"
MODULE = re.compile(r"\w+(?:\.\w+)*")
#: Modules that are named differently from the projects that contain them.
PROJECTS = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}


class ModuleAdvice(NamedTuple):
    """Explain whether the requirements include the module, and what to do."""

    note: str
    advice: str


def find(diagnosis: Diagnosis, answer: Mapping[str, Any]) -> ModuleAdvice | None:
    """Return a finding if the job's requirements explain the missing module.

    `answer` is the report of the node: `requirements` has the names of the projects in `requirements_file`, None if
    they are not known, and `environment` the name of the environment that `setup` made for it.
    """
    names, module = answer.get("requirements"), diagnosis.subject or ""
    is_import = diagnosis.kind == "import_error" and (diagnosis.error or "").startswith(CLASS)
    if names is None or not is_import or not MODULE.fullmatch(module):
        return None
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return None
    project = PROJECTS.get(top, top)
    file = answer.get("requirements_file") or FILE
    if normal(project) not in names:
        if project in RUNTIME:  # `setup` adds these
            return None
        what = top if project == top else f"{top} (the project {project})"
        step = f"add {project} to {file}" if file == FILE else f"add {project} to the project and lock it again"
        advice = f"{step}, then run clusterctl setup WORKSPACE; or, if {top} is a file of the job, {ON_PATH}"
        return ModuleAdvice(f"{what} is not in {file}", advice)
    if answer.get("environment") is None:
        note = f"{project} is in {file}, but the run had no environment made by clusterctl setup"
        return ModuleAdvice(note, "to create it: clusterctl setup WORKSPACE")
    return None
