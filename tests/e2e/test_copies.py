"""The model comes home though a node is gone: copies of pieces on other nodes, and the merged model on the lead's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusterctl.common.files import digest_of
from clusterctl.runtime import load_model
from e2e.programs import REGRESSION
from support.processes import wait_until
from support.site import Site

pytestmark = pytest.mark.nodes(3)


def events(site: Site, job: str, run: str = "0001") -> list[dict[str, Any]]:
    text = (site.job_dir(job, 0) / f".clusterctl/runs/{run}/events.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def copied(site: Site, job: str, node: int, run: str = "0001") -> dict[str, list[str]]:
    place = site.job_dir(job, node) / f".clusterctl/runs/{run}/copies"
    return {tag.name: sorted(path.name for path in tag.iterdir()) for tag in place.iterdir()}


def test_pieces_are_copied_to_the_next_node_and_the_newest_model_is_merged_on_the_leads(site: Site) -> None:
    site.conf(KEEP_MODELS=2, KEEP=2)
    job = site.dispatch(REGRESSION)
    site.ok("start", "--job_workspace", job, "--", "--num_passes", "4")
    log = events(site, job)
    assert [e["message"] for e in log if e.get("level") in ("warning", "error")] == []
    done = {(e["tag"], e.get("checkpoint", False)) for e in log if e["event"] == "copied"}
    checkpoint = max(tag for tag, is_checkpoint in done if is_checkpoint)
    assert ("pass-00003", False) in done
    for node in range(3):
        held = copied(site, job, node)
        piece = f"pserver-{(node - 1) % 3:05d}.safetensors"
        for tag in ("pass-00003", checkpoint):
            assert held[tag] == ["manifest.json", piece], (node, held)
        assert {"pass-00000", "pass-00001"}.isdisjoint(held)  # copies go with their originals
        assert len([tag for tag in held if tag.startswith("step-")]) <= 2
        original = site.job_dir(job, (node - 1) % 3) / "output/pass-00003" / piece
        copy = site.job_dir(job, node) / ".clusterctl/runs/0001/copies/pass-00003" / piece
        assert digest_of(copy) == digest_of(original)
    lead = site.job_dir(job, 0) / "output"
    assert [path.parent.name for path in sorted(lead.glob("*/model.safetensors"))] == ["pass-00003"]
    site.ok("collect", job, "-o", "home")
    merged = load_model(lead / "pass-00003")
    whole = load_model(site.directory / "home/model")
    assert merged.keys() == whole.keys()
    assert np.array_equal(merged["w"], whole["w"])
    assert not list(Path(site.directory / "home").glob("node-0/output/*/model.safetensors"))
    assert wait_until(lambda: not site.processes(job))


def test_a_run_and_its_model_outlive_a_node_that_is_lost_for_good(site: Site) -> None:
    """Collect without it, and without the lead's node; the model is the same."""
    site.conf(NODE_GRACE_S=2)
    job = site.dispatch(REGRESSION)
    site.ok("start", "--job_workspace", job, "--", "--num_passes", "3")
    site.ok("collect", job, "-o", "whole")
    whole = load_model(site.directory / "whole/model")
    fake = str(site.nodes_directory)
    for node in (2, 0):
        site.ok("fake", "kill", f"node{node}", "--dir", fake)
        part = site.run("collect", job, "-o", f"without{node}", "--json")
        assert (part.code, part.json()["tag"]) == (3, "pass-00002"), part
        model = load_model(site.directory / part.json()["model"])
        assert np.array_equal(model["w"], whole["w"])
        assert all(np.array_equal(a, b) for a, b in zip(model["e"], whole["e"], strict=True))
        site.ok("fake", "heal", f"node{node}", "--dir", fake)


def test_collect_takes_a_copy_in_place_of_a_damaged_piece_and_else_the_merged_model(site: Site) -> None:
    site.conf()
    job = site.dispatch(REGRESSION)
    site.ok("start", "--job_workspace", job, "--", "--num_passes", "1")
    site.ok("collect", job, "-o", "whole")
    whole = load_model(site.directory / "whole/model")["w"]
    piece = "pass-00000/pserver-00001.safetensors"
    original = site.job_dir(job, 1) / "output" / piece
    original.write_bytes(original.read_bytes()[:-1] + b"?")
    again = site.ok("collect", job, "-o", "again", "--json").json()
    assert np.array_equal(load_model(site.directory / again["model"])["w"], whole)
    (site.job_dir(job, 2) / ".clusterctl/runs/0001/copies" / piece).unlink()
    last = site.ok("collect", job, "-o", "last", "--json").json()
    assert np.array_equal(load_model(site.directory / last["model"])["w"], whole)
