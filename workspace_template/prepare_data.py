"""Makes the data of this workspace: a dictionary, and training and test shards, from Python's own help texts.

    python prepare_data.py --shards 4

`pydoc_data.topics` holds about 450 kB of English in every Python. Its paragraphs are dealt out like this:

    data/words.txt         the dictionary, one word a line; the number of the line, from 0, is the word's id
    data/train.txt-00000   the first training shard: one paragraph a line, its words separated by spaces
    data/test.txt-00000    the first test shard; there are as many of each as there are shards
"""

import argparse
import re
from collections import Counter
from pathlib import Path

UNKNOWN, START = "<unk>", "<s>"  # a word outside the dictionary; the filler before a paragraph
TOKEN = re.compile(r"[a-z_][a-z0-9_]*|[.,:;()]")
TABLE_LINE = re.compile(r"\s*[+|]")


def read_paragraphs():
    """The paragraphs of all topics as lists of words, in a fixed order and each only once.

    Topics quote one another at length. Without dropping the copies a third of the test words would be in training too.
    """
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))
    paragraphs = (words_of(paragraph) for paragraph in re.split(r"\n\s*\n", text))
    return [list(words) for words in dict.fromkeys(paragraphs) if words]


def words_of(paragraph):
    """Lower-cased words, names and punctuation of a paragraph. Tables and lines of `****` or `====` give none."""
    lines = [line for line in paragraph.lower().splitlines() if not TABLE_LINE.match(line)]
    return tuple(TOKEN.findall("\n".join(lines)))


def dictionary(paragraphs):
    """Every word that occurs at least twice, the most frequent first."""
    counts = Counter(word for words in paragraphs for word in words)
    return [UNKNOWN, START] + [word for word, count in counts.most_common() if count >= 2]


def deal(paragraphs, shards):
    """Deals the paragraphs out, each to the shard that has the fewest words so far."""
    hands, sizes = [[] for _ in range(shards)], [0] * shards
    for words in paragraphs:
        smallest = sizes.index(min(sizes))
        hands[smallest].append(words)
        sizes[smallest] += len(words)
    return hands


def prepare(out="data", shards=1):
    """Writes the dictionary and the shards into the directory `out`. The same Python always writes the same files."""
    paragraphs = read_paragraphs()
    test = paragraphs[9::10]
    train = [words for number, words in enumerate(paragraphs) if number % 10 != 9]
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("t*.txt-*"):
        old.unlink()
    write_lines(folder / "words.txt", dictionary(train))
    for kind, part in (("train", train), ("test", test)):
        for number, hand in enumerate(deal(part, shards)):
            write_lines(folder / f"{kind}.txt-{number:05d}", (" ".join(words) for words in hand))


def write_lines(path, lines):
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description="Makes the dictionary, and training and test shards.")
    parser.add_argument("--shards", type=int, default=1, help="one per trainer; default 1")
    parser.add_argument("--out", default="data", help="directory to write; default data")
    options = parser.parse_args()
    prepare(options.out, options.shards)
    print(f"{options.out}: words.txt, and train.txt and test.txt in {options.shards} shards each")


if __name__ == "__main__":
    main()
