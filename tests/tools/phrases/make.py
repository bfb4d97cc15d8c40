"""Make the phrases that ship: `python -m tests.tools.phrases.make TEXTS [--out FILE]`.

TEXTS is a folder with the sources that the card names (`ngtcli/background/README.md`). The same
texts give the same file.
"""

import argparse
from pathlib import Path

from ngtcli.background.files import SHIPPED
from ngtcli.background.phrases import write_phrases
from tests.tools.phrases.mining import mine
from tests.tools.phrases.texts import read_texts


def main() -> None:
    """Count, write, and print what the card says of numbers."""
    parser = argparse.ArgumentParser(description="Make the phrases that ship.")
    parser.add_argument("texts", type=Path)
    parser.add_argument("--out", type=Path, default=SHIPPED["english"])
    args = parser.parse_args()
    texts = read_texts(args.texts)
    print(
        f"{int((texts.stream > 0).sum())} words and marks, {int(texts.works.max()) + 1} works,"
        f" {int(texts.documents.max()) + 1} documents"
    )
    phrases = mine(texts)
    for n, (_, counts) in enumerate(phrases.rows, 1):
        print(f"{len(counts)} phrases of {n} words")
    write_phrases(args.out, phrases)
    print(f"{args.out}: {len(phrases)} phrases, {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
