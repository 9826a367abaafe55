"""Makes the data of this workspace, a dictionary and shards of text, from Python's own help pages.

    python prepare_data.py --shards 4

`pydoc_data.topics` holds about 450 kB of English in every Python. Every tenth paragraph is held out for testing.
Beside this file it writes

    data/words.txt         the dictionary, one word a line; a word's id is the number of its line, from 0
    data/train.txt-00000   the first training shard: one paragraph a line, its words separated by spaces
    data/test.txt-00000    the first test shard; there are as many as training shards
"""

import argparse
import re
from collections import Counter
from pathlib import Path

UNKNOWN = "<unk>"  # any word outside the dictionary
START = "<s>"  # what stands before the first word of a paragraph
WORD = re.compile(r"[a-z_][a-z0-9_]*|[.,:;()]")
TABLE_LINE = re.compile(r"\s*[+|]")
DATA = Path(__file__).parent / "data"


def prepare(out=DATA, shards=1):
    """Writes the dictionary and the shards into the directory `out`; the same Python always writes the same files."""
    paragraphs = read_paragraphs()
    test = paragraphs[9::10]
    train = [words for number, words in enumerate(paragraphs) if number % 10 != 9]
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / "words.txt", dictionary(train))
    for kind, part in (("train", train), ("test", test)):
        for old in folder.glob(f"{kind}.txt-*"):
            old.unlink()
        for number, hand in enumerate(deal(part, shards)):
            write_lines(folder / f"{kind}.txt-{number:05d}", map(" ".join, hand))


def read_paragraphs():
    """The paragraphs of all topics, each a tuple of words, in a fixed order.

    Topics quote one another at length, so each paragraph is taken once: otherwise a third of the test would be
    text that was trained on.
    """
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))
    paragraphs = map(split_words, re.split(r"\n\s*\n", text))
    return [words for words in dict.fromkeys(paragraphs) if words]


def split_words(paragraph):
    """The words, names and punctuation of a paragraph, in lower case; tables and rules such as `****` give none."""
    lines = [line for line in paragraph.lower().splitlines() if not TABLE_LINE.match(line)]
    return tuple(WORD.findall("\n".join(lines)))


def dictionary(paragraphs):
    """Every word seen at least twice, the most frequent first, after the two special ones."""
    counts = Counter(word for words in paragraphs for word in words)
    return [UNKNOWN, START, *(word for word, count in counts.most_common() if count >= 2)]


def deal(paragraphs, shards):
    """Deals out paragraphs, each to the shard that has the fewest words so far."""
    hands, sizes = [[] for _ in range(shards)], [0] * shards
    for words in paragraphs:
        smallest = sizes.index(min(sizes))
        hands[smallest].append(words)
        sizes[smallest] += len(words)
    return hands


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description="Makes the dictionary and the shards of text.")
    parser.add_argument("--shards", type=int, default=1, help="how many, one per trainer (default 1)")
    parser.add_argument("--out", default=DATA, help="the directory to write (default: data beside this file)")
    options = parser.parse_args()
    if options.shards < 1:
        parser.error("--shards must be at least 1")
    prepare(options.out, options.shards)
    print(f"{options.out}: words.txt, train.txt-* and test.txt-* in {options.shards} shard(s) each")


if __name__ == "__main__":
    main()
