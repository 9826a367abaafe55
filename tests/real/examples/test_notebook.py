"""The notebook of the Python API, run by a kernel as Jupyter runs it."""

from __future__ import annotations

import pytest

from support.places import ROOT
from support.site import Site

NOTEBOOK = ROOT / "examples" / "api" / "notebook.ipynb"


@pytest.mark.engines
def test_the_notebook_runs_and_shows_progress_without_control_codes(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbformat = pytest.importorskip("nbformat", reason="make engines installs it")
    nbclient = pytest.importorskip("nbclient", reason="make engines installs it")
    monkeypatch.setenv("CLUSTERCTL_CONF", str(site.conf()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(site.nodes_directory / "cache"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not [cell for cell in notebook.cells if cell.get("outputs")], "it is kept without outputs"
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": NOTEBOOK.parent}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert {output.output_type for output in outputs} <= {"stream", "execute_result"}
    printed = "".join(output.text for output in outputs if output.output_type == "stream")
    assert {output.name for output in outputs if output.output_type == "stream"} == {"stdout"}
    assert printed.replace("\n", "").isprintable()
    assert "is up on 3 nodes" in printed
    assert printed.count("succeeded") == 2
