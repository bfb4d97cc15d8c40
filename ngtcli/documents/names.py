"""Distinct names for files, with as few parts of their paths as that takes."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence


def utf8(text: str) -> str:
    """`text` with "?" for lone surrogates, by which Python writes bytes that are not UTF-8."""
    return text.encode("utf-8", "replace").decode()


def distinct_names(files: Sequence[tuple[str, int]], taken: Iterable[str] = ()) -> list[str]:
    """A name for each (path, number of its last parts below the named path), in order.

    The name is that of the file; if it repeats, the path below the named one; if that repeats too,
    as many further parts as make the names distinct. No name is one of `taken`.

    >>> distinct_names([("dup/a/notes.txt", 2), ("dup/notes.txt", 1), ("dup/b.txt", 1)])
    ['a/notes.txt', 'notes.txt', 'b.txt']
    """
    parts = [[p for p in os.path.abspath(path).split(os.sep) if p] for path, _ in files]
    # 0: the file's name; 1: the path below the named one; 2: a part more ….
    steps = [0] * len(files)
    names = [utf8(part[-1]) for part in parts]
    while repeated := _repeated(names, taken):
        wider = [i for i in repeated if steps[i] == 0 or len(names[i].split("/")) < len(parts[i])]
        if not wider:
            return _numbered(names, taken)
        for i in wider:
            steps[i] += 1
            names[i] = utf8("/".join(parts[i][-(files[i][1] + steps[i] - 1) :]))
    return names


def _repeated(names: Sequence[str], taken: Iterable[str]) -> list[int]:
    """The indices of names that are not unique or are in `taken`."""
    counts = Counter(names) + Counter(taken)
    return [i for i, name in enumerate(names) if counts[name] > 1]


def _numbered(names: Sequence[str], taken: Iterable[str]) -> list[str]:
    """`names` with numbers after repeated ones, as where different bytes became "?"."""
    used, numbered = set(taken), []
    for name in names:
        number, numbered_name = 1, name
        while numbered_name in used:
            number += 1
            numbered_name = f"{name} ({number})"
        used.add(numbered_name)
        numbered.append(numbered_name)
    return numbered
