"""One JSON object from a text, as lines of files have them."""

import json
import re
from collections import Counter
from typing import Any

from ngtcli.errors import InputError
from ngtcli.system.yaml_file import shown

HINT = "Write one JSON object a line."
_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # an escaped half of a character, or of a pair


class RepeatedKeyError(InputError):
    """A key stands twice in an object; `found` is what the outermost one has once."""

    def __init__(self, key: str, found: dict[str, Any]) -> None:
        super().__init__(f"{shown(key)} stands there twice", "Give each key once.")
        self.found = found


def json_object(line: str) -> dict[str, Any]:
    """The object that a line holds.

    Raises InputError for what is no JSON object, is nested too deeply, or holds text that is no
    Unicode; RepeatedKeyError for one that has a key twice.

    >>> json_object('{"id": 3}')
    {'id': 3}
    """
    twice: dict[str, None] = {}  # in order, of all objects
    outermost: set[str] = set()  # the same of the object that ended last

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        outermost.clear()
        if len(found) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            repeated = [key for key, count in counts.items() if count > 1]
            outermost.update(repeated)
            twice.update(dict.fromkeys(repeated))
        return found

    try:
        data = json.loads(line, object_pairs_hook=object_of)
        if _HALF.search(line):
            json.dumps(data, ensure_ascii=False).encode()
    except RecursionError:
        raise InputError("nested too deeply", HINT) from None
    except UnicodeEncodeError:
        raise InputError(
            "half of a character (a lone surrogate)", "Write characters whole."
        ) from None
    except ValueError as error:
        raise InputError(f"not JSON ({_place(error)})", HINT) from None
    if not isinstance(data, dict):
        raise InputError("no JSON object", HINT)
    if twice:
        once = {key: value for key, value in data.items() if key not in outermost}
        raise RepeatedKeyError(next(iter(twice)), once)
    return data


def _place(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.lower()} at character {error.pos + 1}"
    return str(error).split(":", 1)[0].lower()  # a number with too many digits
