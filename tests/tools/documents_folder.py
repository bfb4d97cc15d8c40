"""A folder of all that lies in people's folders, to try `ngt docs`, `ask` and `summarize` on.

    python -m tests.tools.documents_folder FOLDER

Small files of every format, a scanned and an encrypted PDF, an empty file, binaries, a link that
leads in a circle, a pipe without a writer, and names with spaces, percent signs and line feeds.
"""

import os
import sys
from pathlib import Path

from tests.tools.document_files import FILES, HTML, paged_pdf

_NOTE = "The ferry leaves the northern quay at noon. It carries forty passengers."
_KEPT = ("ropes", "lamps", "buoys", "nets", "bells", "maps", "oars")
_ODD_NAMES = ("100% of it.txt", "a #1 note.txt", "two\nlines.txt", "\x1b[31mred.txt")


def _day(i: int) -> str:
    """A page of a log, in words of its own."""
    wares = ", ".join(f"{i * k % 97} {ware}" for k, ware in enumerate(_KEPT, 3))
    return (
        f"On day {i} the keeper counted {wares}. The wind came from {i * 37 % 360} degrees and"
        f" {i % 5 + 2} ships waited outside the bar. {_NOTE} Nobody was late on day {i}, but for"
        f" the pilot of ship {i * 11 % 53}, who had lost his {_KEPT[i % 7]} in the night."
    )


def fill(folder: Path) -> None:
    """Make the folder and all that is in it. Raises OSError, also where it stands already."""
    folder.mkdir(parents=True)
    for name, make in FILES.items():
        (folder / name).write_bytes(make())
    (folder / "long.pdf").write_bytes(paged_pdf([_day(i) for i in range(1, 41)]))
    (folder / "broken.pdf").write_bytes(FILES["columns.pdf"]()[:700])
    (folder / "empty.txt").touch()
    (folder / "blank.md").write_text("\n \n")
    (folder / "program").write_bytes(bytes(range(256)) * 16)
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
    (folder / "old.txt").write_text("Größe, naïve, café", encoding="latin-1")
    odd = folder / "odd names"
    odd.mkdir()
    for name in _ODD_NAMES:
        (odd / name).write_text(_NOTE)
    (odd / "bus.html").write_text(HTML)
    (odd / "circle").symlink_to(folder, target_is_directory=True)
    (odd / "itself").symlink_to("itself")
    os.mkfifo(folder / "pipe.txt")


if __name__ == "__main__":
    fill(Path(sys.argv[1]))
