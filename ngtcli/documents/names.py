"""Names for files that tell them apart and say no more of where they lie than that takes."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence


def utf8(text: str) -> str:
    """`text` without the lone surrogates that Python makes of foreign bytes in names."""
    return text.encode("utf-8", "replace").decode()


def distinct_names(files: Sequence[tuple[str, int]], taken: Iterable[str] = ()) -> list[str]:
    """A name for each (path, how many of its last parts lie below what was named), in order.

    It is the file's own name; where that repeats, the path below what was named; where that
    repeats too, as many parts before it as tell the files apart. None is one of `taken`.

    >>> distinct_names([("dup/a/notes.txt", 2), ("dup/notes.txt", 1), ("dup/b.txt", 1)])
    ['a/notes.txt', 'notes.txt', 'b.txt']
    """
    parts = [[p for p in os.path.abspath(path).split(os.sep) if p] for path, _ in files]
    steps = [0] * len(files)  # 0: the own name; 1: the path below what was named; 2: a part more …
    names = [utf8(part[-1]) for part in parts]
    while crowded := _crowded(names, taken):
        wider = [i for i in crowded if steps[i] == 0 or len(names[i].split("/")) < len(parts[i])]
        if not wider:
            return _numbered(names, taken)
        for i in wider:
            steps[i] += 1
            names[i] = utf8("/".join(parts[i][-(files[i][1] + steps[i] - 1) :]))
    return names


def _crowded(names: Sequence[str], taken: Iterable[str]) -> list[int]:
    counts = Counter(names) + Counter(taken)
    return [i for i, name in enumerate(names) if counts[name] > 1]


def _numbered(names: Sequence[str], taken: Iterable[str]) -> list[str]:
    """`names` with numbers after those that stand already, as where foreign bytes became "?"."""
    used, numbered = set(taken), []
    for name in names:
        number, own = 1, name
        while own in used:
            number += 1
            own = f"{name} ({number})"
        used.add(own)
        numbered.append(own)
    return numbered
