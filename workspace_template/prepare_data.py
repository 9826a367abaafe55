"""Create the data of this workspace, a dictionary and shards of text, from Python's own help pages.

    python prepare_data.py --shards 4

`pydoc_data.topics` contains about 450 kB of English in every Python. Every tenth paragraph is held out for testing.
The program writes, next to this file,

    data/words.txt         the dictionary, one word per line; a word's id is its line number, from 0
    data/train.txt-00000   the first training shard: one paragraph per line, its words separated by spaces
    data/test.txt-00000    the first test shard; there are as many test shards as training shards
"""

import argparse
import re
from collections import Counter
from pathlib import Path

UNKNOWN = "<unk>"  # any word outside the dictionary
START = "<s>"  # precedes the first word of a paragraph
WORD = re.compile(r"[a-z_][a-z0-9_]*|[.,:;()]")
TABLE_LINE = re.compile(r"\s*[+|]")
DATA = Path(__file__).parent / "data"


def prepare(out=DATA, shards=1):
    """Write the dictionary and the shards into the directory `out`. The same Python always writes the same files."""
    paragraphs = read_paragraphs()
    test = paragraphs[9::10]
    train = [words for number, words in enumerate(paragraphs) if number % 10 != 9]
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / "words.txt", dictionary(train))
    for kind, part in (("train", train), ("test", test)):
        for old in folder.glob(f"{kind}.txt-*"):
            old.unlink()
        for number, shard in enumerate(split(part, shards)):
            write_lines(folder / f"{kind}.txt-{number:05d}", map(" ".join, shard))


def read_paragraphs():
    """Return the paragraphs of all topics, each a tuple of words, in a fixed order.

    Topics quote one another at length, so each paragraph is taken once. Otherwise a third of the test text would also
    be training text.
    """
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))
    paragraphs = map(split_words, re.split(r"\n\s*\n", text))
    return [words for words in dict.fromkeys(paragraphs) if words]


def split_words(paragraph):
    """Return the words, names and punctuation of a paragraph, in lower case, without tables and rules (`****`)."""
    lines = [line for line in paragraph.lower().splitlines() if not TABLE_LINE.match(line)]
    return tuple(WORD.findall("\n".join(lines)))


def dictionary(paragraphs):
    """Return the two special words, then every word seen at least twice, the most frequent first."""
    counts = Counter(word for words in paragraphs for word in words)
    return [UNKNOWN, START, *(word for word, count in counts.most_common() if count >= 2)]


def split(paragraphs, count):
    """Distribute paragraphs over `count` shards, each to the shard that has the fewest words so far."""
    shards, sizes = [[] for _ in range(count)], [0] * count
    for words in paragraphs:
        smallest = sizes.index(min(sizes))
        shards[smallest].append(words)
        sizes[smallest] += len(words)
    return shards


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description="Create the dictionary and the shards of text.")
    parser.add_argument("--shards", type=int, default=1, help="number of shards, one per trainer (default 1)")
    parser.add_argument("--out", default=DATA, help="the directory to write to (default: data next to this file)")
    options = parser.parse_args()
    if options.shards < 1:
        parser.error("--shards must be at least 1")
    prepare(options.out, options.shards)
    shards = "1 shard" if options.shards == 1 else f"{options.shards} shards"
    print(f"{options.out}: words.txt, train.txt-* and test.txt-* in {shards} each")


if __name__ == "__main__":
    main()
