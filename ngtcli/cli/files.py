"""Files as commands name them: standard input for `-`, and files that are to be written."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from ngtcli.cli.streams import Notes, piped_stdin
from ngtcli.documents.load import STDIN
from ngtcli.errors import UsageError, shortened


def standard_input(paths: Sequence[str]) -> BinaryIO | None:
    """Standard input where something is piped in, or where `paths` name it: then also a terminal.

    None where there is none to read.
    """
    stdin = piped_stdin()
    if stdin is not None or STDIN not in paths or sys.stdin is None or sys.stdin.closed:
        return stdin
    Notes().say("Reading what is typed here; Ctrl-D at the start of a line ends it.")
    return sys.stdin.buffer


def check_output_file(path: Path | None) -> None:
    """Raise UsageError where no file can be written at `path`, before anything is computed."""
    if path is None:
        return
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # too long, links in a circle
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise UsageError(f"{shortened(str(path))}: {reason}", "Name another file.") from None
    if path.is_dir():
        raise UsageError(f"{path}: a folder", "Name a file in it.")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: no such folder", "Make the folder first.")
