"""Create the data of this workspace, two files of text, from Python's own help pages.

    python prepare_data.py

`pydoc_data.topics` contains about 450 kB of English in every Python. Every tenth paragraph is held out for testing.
The program writes data/train.txt and data/test.txt next to this file. Every trainer gets both whole: ps.loader divides
their windows among the trainers.
"""

import argparse
import re
from pathlib import Path

DATA = Path(__file__).parent / "data"


def prepare(out=DATA):
    """Write both files into the directory `out`. The same Python always writes the same files."""
    paragraphs = read_paragraphs()
    parts = {
        "train.txt": [text for number, text in enumerate(paragraphs) if number % 10 != 9],
        "test.txt": paragraphs[9::10],
    }
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        (folder / name).write_text("\n\n".join(part), encoding="utf-8")


def read_paragraphs():
    """Return the paragraphs of all topics in a fixed order.

    Topics quote one another at length, so each paragraph is taken once. Otherwise a third of the test text would also
    be training text.
    """
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))
    return [paragraph for paragraph in dict.fromkeys(re.split(r"\n\s*\n", text)) if paragraph.strip()]


def main():
    parser = argparse.ArgumentParser(description="Create the training text and the test text.")
    parser.add_argument("--out", default=DATA, help="the directory to write to (default: data next to this file)")
    options = parser.parse_args()
    prepare(options.out)
    print(f"{options.out}: train.txt and test.txt")


if __name__ == "__main__":
    main()
