"""The site: its generated pages, its table of contents, and, with Sphinx installed, its build and its search."""

from __future__ import annotations

import ast
import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.config.settings import TABLE
from clusterctl.documents.commands import COMMANDS
from support.browser import CHROMIUM, WITHOUT_CHROMIUM, Browser, browser
from support.places import ROOT

DOCS = ROOT / "docs"
sys.path.append(str(DOCS))

import make_python_reference  # noqa: E402
import make_reference  # noqa: E402
import make_site  # noqa: E402

NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason=WITHOUT_CHROMIUM)
#: What a page loads by itself. Links are not.
LOADED = re.compile(r"<(?:script|img|iframe|source)[^>]* src=\"([^\"]+)\"|<link[^>]* href=\"([^\"]+)\"|url\(([^)]+)\)")


def build(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DOCS / "make_site.py"), str(directory)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx", reason="needs the extra docs: make .venv/site.stamp")
    site = tmp_path_factory.mktemp("site") / "site"
    done = build(site)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return site


def test_the_front_page_lists_every_page_once() -> None:
    front = (ROOT / make_site.FRONT).read_text(encoding="utf-8")
    listed = [f"{path}.md" for _, body in make_site.SECTION.findall(front) for _, path in make_site.ENTRY.findall(body)]
    pages = [make_site.target_of(make_site.FRONT, path) for path in listed]
    assert sorted(pages) == [path for path in make_site.page_paths() if path != make_site.FRONT]


def test_every_link_leads_to_a_file_of_the_site() -> None:
    there = {*make_site.pages(), *map(make_site.site_name, make_site.linked_files())}
    for name, text in make_site.pages().items():
        links = [link for link in make_site.LINK.findall(make_site.FENCED.sub("", text)) if ":" not in link]
        targets = {posixpath.normpath(posixpath.join(posixpath.dirname(name), link)) for link in links}
        assert {one for one in targets if one not in there and f"{one}.md" not in there} == set(), name


def test_blocks_of_code_are_not_changed() -> None:
    for path in make_site.page_paths():
        text = (ROOT / path).read_text(encoding="utf-8")
        blocks = [block[0] for block in make_site.FENCED.finditer(text)]
        assert [block[0] for block in make_site.FENCED.finditer(make_site.for_the_site(path))] == blocks


def test_the_generated_reference_has_every_setting_event_and_public_name() -> None:
    pages = make_reference.pages()
    settings, events = pages["reference/settings"], pages["reference/events"]
    assert re.findall(r"\{confval\} (\w+)", settings) == [setting.name for setting in TABLE]
    tree = ast.parse((ROOT / "clusterctl/common/events.py").read_text(encoding="utf-8"))
    marked = [
        node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "event"
    ]
    names = {ast.literal_eval(node.annotation.slice) for node in marked if isinstance(node.annotation, ast.Subscript)}
    assert len(names) > 20
    headings = re.findall(r"^## (\w+)$", events, re.MULTILINE)
    assert names <= set(headings)
    assert set(re.findall(r"\]\(#(.*?)\)", events)) <= {heading.lower() for heading in headings}
    assert "| *`cause`* | [EndCause](#endcause) |" in events
    documents = pages["reference/documents"]
    anchors = {heading.lower().replace(" ", "-") for heading in re.findall(r"^## (.+)$", documents, re.MULTILINE)}
    assert (
        set(re.findall(r"\]\(#(.*?)\)", documents))
        | {name.replace(" ", "-") for name in COMMANDS if name not in ("disconnect", "metrics")}
        <= anchors
    )
    assert "| `bytes_copied` | integer | of unchanged files, copied on the node |" in documents
    assert "| *`error`* | [ErrorDocument](#errordocument) | |" in documents.replace("|  |", "| |")
    for package in make_python_reference.PACKAGES:
        page = make_python_reference.page(package)
        assert [name for name in make_python_reference.exported(package) if f"## {name}\n" not in page] == []


@pytest.mark.parametrize("package", make_python_reference.PACKAGES)
def test_every_public_name_has_a_docstring(package: str) -> None:
    nodes = {name: make_python_reference.find(package, name)[1] for name in make_python_reference.exported(package)}
    documented = (ast.FunctionDef, ast.ClassDef)
    assert [name for name, one in nodes.items() if isinstance(one, documented) and not ast.get_docstring(one)] == []


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(built: Path) -> None:
    files = [path for path in built.rglob("*") if path.suffix in (".html", ".css")]
    assert len(files) > 40
    found = {(path.name, "".join(match).strip("'\"")) for path in files for match in LOADED.findall(path.read_text())}
    assert [one for one in sorted(found) if "//" in one[1] and not one[1].startswith("data:")] == []
    scripts = "".join(path.read_text(encoding="utf-8") for path in (built / "_static").rglob("*.js"))
    assert "importScripts" not in scripts


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ["[this](missing.md)", "[this](commands.md#no-such-heading)"])
def test_a_mistake_in_a_link_is_found(mistake: str, built: Path, tmp_path: Path) -> None:
    make_site.write(tmp_path / "source")
    for page in [path for path in (tmp_path / "source").rglob("*.md") if path.name not in ("index.md", "commands.md")]:
        page.unlink()
    (tmp_path / "source/commands.md").write_text("# Commands\n\n## start\n")
    (tmp_path / "source/index.md").write_text(f"# A\n\n{mistake}\n\n```{{toctree}}\ncommands\n```\n")
    done = sphinx(tmp_path / "source", tmp_path / "site")
    assert done.returncode != 0
    assert "xref_missing" in done.stderr


@pytest.mark.slow
def test_a_page_that_the_front_page_does_not_list_fails_the_build(built: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/index.md").write_text("# A\n")
    (tmp_path / "source/lost.md").write_text("# Lost\n")
    done = sphinx(tmp_path / "source", tmp_path / "site")
    assert done.returncode != 0
    assert "lost.md: WARNING: document isn't included in any toctree" in done.stderr


def sphinx(source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    program = "import sys, pathlib, make_site; sys.exit(make_site.build(*map(pathlib.Path, sys.argv[1:])))"
    command = [sys.executable, "-c", program, str(source), str(site)]
    return subprocess.run(command, cwd=DOCS, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as one:
        yield one


@NEEDS_CHROMIUM
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("SAVE_EVERY", "settings.html#confval-SAVE_EVERY"),
        ("--resume-from", "commands.html#cmdoption-clusterctl-start-resume-from"),
        ("clip_by_norm", "runtime.html#clusterctl.runtime.clip_by_norm"),
    ],
)
def test_the_search_works_from_a_file(words: str, page: str, built: Path, chromium: Browser) -> None:
    chromium.open(built / "search.html", query=f"q={words}")
    links = results(chromium)
    assert any(link.endswith(page) or f"/{page}" in link for link in links), links
    assert chromium.complaints == []
    assert [one for one in chromium.requests if not one.startswith(("file:", "data:"))] == []


def results(chromium: Browser) -> list[str]:
    """Return the links to the results of a search once all are there."""
    script = """new Promise(done => {
      const look = () => {
        const shown = [...document.querySelectorAll("ul.search li a")].map(one => one.href);
        if (document.querySelector(".search-summary")?.textContent.includes("found")) done(shown);
        else setTimeout(look, 50);
      };
      look();
    })"""
    return list(chromium.evaluate(script))


@NEEDS_CHROMIUM
@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["commands.html", "reference/settings.html"])
def test_a_page_fits_a_phone_and_asks_for_nothing(name: str, dark: bool, built: Path, chromium: Browser) -> None:
    chromium.open(built / f"{name}.html", width=390, dark=dark)
    assert chromium.evaluate("document.documentElement.scrollWidth") == 390
    assert chromium.complaints == []
    assert [one for one in chromium.requests if not one.startswith(("file:", "data:"))] == []
