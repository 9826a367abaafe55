"""conf.py.example and the tables of docs/configuration.md say what the fields of Settings do, and the example loads."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.config import from_values, load
from clusterctl.config.settings import TABLE
from support.places import ROOT

sys.path.append(str(ROOT / "docs"))
import make_settings

EXAMPLE = make_settings.EXAMPLE


@pytest.mark.parametrize(("path", "made"), [(EXAMPLE, make_settings.example), (make_settings.PAGE, make_settings.page)])
def test_what_is_made_from_the_settings_is_fresh(path: Path, made: Callable[[], str]) -> None:
    assert path.read_text(encoding="utf-8") == made(), "run: python docs/make_settings.py"


def test_every_setting_is_described_once_in_each() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| [`r]", make_settings.page(), re.MULTILINE)
    lines = re.findall(r"^(?:# )?([A-Z_]+) = ", make_settings.example(), re.MULTILINE)
    assert sorted(rows) == sorted(lines) == sorted(one.name for one in TABLE)


def test_a_page_without_the_table_of_a_group_is_refused() -> None:
    topic = make_settings.Topic.TRAINING
    with pytest.raises(LookupError, match=f"0 tables below '### {topic.value}'"):
        make_settings.with_table("# conf.py\n", topic)


def test_the_example_loads_as_it_is_and_gives_the_defaults() -> None:
    settings = load(EXAMPLE, {})
    assert len(settings.hosts) == 2
    plain = from_values({"HOSTS": ["root@10.0.0.10", "root@10.0.0.11"]})
    assert settings == dataclasses.replace(plain, source=EXAMPLE)


def test_the_example_loads_with_every_line_uncommented(tmp_path: Path) -> None:
    path = tmp_path / "conf.py"
    path.write_text(re.sub(r"^# ([A-Z_]+ = )", r"\1", EXAMPLE.read_text(), flags=re.MULTILINE))
    assert dataclasses.replace(load(path, {}), source=None) == dataclasses.replace(load(EXAMPLE, {}), source=None)


def test_the_host_in_the_example_is_valid(tmp_path: Path) -> None:
    shown = re.search(r"^#   (Host\(.*?\n#.*?\))$", EXAMPLE.read_text(), flags=re.MULTILINE)
    assert shown
    path = tmp_path / "conf.py"
    path.write_text(f"HOSTS = [{shown[1].replace('#', '')}]")
    host = load(path, {"HOME": "/home/me"}).hosts[0]
    assert all(
        getattr(host, field.name) for field in dataclasses.fields(host) if field.name not in ("pservers", "spare")
    )
