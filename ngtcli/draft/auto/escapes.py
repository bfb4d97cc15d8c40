"""The escapes that `auto` starts from, fitted on recorded runs."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ngtcli.draft.auto.blend import BUCKETS, ORDERS, SOURCES

ESCAPES = Path(__file__).parent / "escapes.json"
SHAPE = (len(SOURCES), ORDERS, BUCKETS)


def fitted_escapes() -> npt.NDArray[np.float64]:
    """The shipped escapes, shape (source, order, bucket).

    No recording holds scores, so theirs are a guess that the first steps correct.
    """
    table = json.loads(ESCAPES.read_text(encoding="utf-8"))["escapes"]
    escapes = np.full(SHAPE, 0.7)
    escapes[: len(table)] = table
    escapes[len(table) :, 0] = 0.999
    return escapes
