"""Build the documentation as a site with a search, from the pages that a code host shows, and from the code.

    python docs/make_site.py [DIRECTORY]

The default directory is build/site. The pages are docs/*.md and the READMEs; docs/index.md lists them, which is also
the order of the site. Pages of the reference are generated from the code. Any warning fails the build: an unknown
link or anchor, a page that the list lacks. Links to other sites are only listed, in external-links.txt.
"""

from __future__ import annotations

import argparse
import posixpath
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import make_python_reference
import make_reference

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FRONT = "docs/index.md"
#: Pages outside of docs/.
ELSEWHERE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "examples/**/README.md")
#: In docs/index.md: where the list of generated pages is inserted.
GENERATED = "<!-- the site lists the generated pages here -->"
FENCED = re.compile(r"^(`{3,})[^\n]*\n.*?^\1$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()([^)#\s]+)")
OUTSIDE = re.compile(r"https?://[^\s)>\"'`]+")
SECTION = re.compile(r"^## (.+)\n((?:(?!## ).*\n)*)", re.MULTILINE)
ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^)#]+)\.md\)", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", nargs="?", type=Path, default=ROOT / "build" / "site", help="default: build/site")
    target = parser.parse_args().directory
    with tempfile.TemporaryDirectory(prefix="site-") as sources:
        write(Path(sources))
        code = build(Path(sources), target)
    if code == 0:
        links = external_links()
        (target / "external-links.txt").write_text("".join(f"{link}\n" for link in links), encoding="utf-8")
        sys.stdout.write(f"{len(links)} links to other sites, not fetched: {target / 'external-links.txt'}\n")
        sys.stdout.write(f"open {target / 'index.html'}\n")
    raise SystemExit(code)


def write(directory: Path) -> None:
    """Write the sources of the site into an empty directory."""
    files = {name: text.encode() for name, text in pages().items()}
    files |= {site_name(path): (ROOT / path).read_bytes() for path in linked_files()}
    for name, data in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def build(sources: Path, target: Path) -> int:
    """Run Sphinx, and return its exit code. Warnings are errors. All pages are written, since all have the contents."""
    try:
        from sphinx.cmd.build import main as sphinx  # noqa: PLC0415 - optional
    except ModuleNotFoundError as exc:
        raise SystemExit(f"{exc.name} is not installed; run `make site`, or pip install -e '.[docs]'") from exc
    strict = ["--fail-on-warning", "--keep-going", "--nitpicky", "--quiet"]
    with tempfile.TemporaryDirectory(prefix="site-") as parsed:
        places = ["--conf-dir", str(DOCS / "site"), "--doctree-dir", parsed]
        return sphinx([*strict, *places, "--write-all", str(sources), str(target)])


def pages() -> dict[str, str]:
    """Return the Markdown of each page of the site by its path there."""
    written = {site_name(path): for_the_site(path) for path in page_paths()}
    generated = {f"{path}.md": text for path, text in (make_reference.pages() | make_python_reference.pages()).items()}
    listed = "\n".join(f"- [{text.partition(chr(10))[0][2:]}]({path})" for path, text in generated.items())
    front = written["index.md"].replace(GENERATED, listed)
    return {**written, **generated, "index.md": front + "".join(contents(front))}


def page_paths() -> list[str]:
    """Return the paths of the hand-written pages in the repository."""
    found = [*DOCS.glob("*.md"), *(path for pattern in ELSEWHERE for path in ROOT.glob(pattern))]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def site_name(path: str) -> str:
    """Return the path on the site of a file of the repository: docs/ is its top, and a README is its directory."""
    if path == "README.md":
        return "overview.md"
    name = path.removeprefix("docs/").replace("/README.md", ".md")
    return name.lower() if name.endswith(".md") else name


def for_the_site(path: str) -> str:
    """Return a page with its links changed to where the pages are on the site. Blocks of code stay as they are."""
    text, home = (ROOT / path).read_text(encoding="utf-8"), posixpath.dirname(site_name(path))
    made, at = [], 0
    for block in [*FENCED.finditer(text), None]:
        prose = text[at : block.start() if block else None]
        made.append(LINK.sub(lambda match: on_the_site(path, match[0], home), prose))
        if block:
            made.append(block[0])
            at = block.end()
    return "".join(made)


def on_the_site(page: str, link: str, home: str) -> str:
    if ":" in link:
        return link
    return posixpath.relpath(site_name(target_of(page, link)), home or ".")


def target_of(page: str, link: str) -> str:
    """Return the path in the repository that a link of a page leads to. Raises ValueError if no file is there."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    if not (ROOT / target).is_file():
        raise ValueError(f"{page} links to {link}, which is not a file")
    return target


def prose(path: str) -> str:
    return FENCED.sub("", (ROOT / path).read_text(encoding="utf-8"))


def linked_files() -> list[str]:
    """Return the files that pages link to and that are no pages: pictures, the licence."""
    known = page_paths()
    links = {target_of(path, link) for path in known for link in LINK.findall(prose(path)) if ":" not in link}
    return sorted(links.difference(known))


def external_links() -> list[str]:
    return sorted({link.rstrip(".,") for path in page_paths() for link in OUTSIDE.findall(prose(path))})


def contents(front: str) -> Iterator[str]:
    """Yield a table of contents, which the front page does not show, for each section of it that lists pages."""
    for title, body in SECTION.findall(front):
        entries = [f"{name} <{path}>" for name, path in ENTRY.findall(body)]
        if entries:
            yield "\n".join(["", "```{toctree}", ":hidden:", f":caption: {title}", "", *entries, "```", ""])


if __name__ == "__main__":
    main()
