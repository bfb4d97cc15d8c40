"""The background of `auto` in a replay: for the tokenizer of the recording, if that is here."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ngtcli.background.files import check_names
from ngtcli.background.loaded import Backgrounds
from ngtcli.errors import ModelError
from ngtcli.measure.replay.traces import TraceSet
from ngtcli.model_files.pretrained import load_tokenizer
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie.background import BackgroundCounts


def recorded_background(
    traces: TraceSet, names: Sequence[str], warn: Callable[[str], None]
) -> BackgroundCounts | None:
    """The counts of these backgrounds; None without names or without the tokenizer.

    `warn` is told why there is none. Raises UsageError for an unknown name.
    """
    check_names(names)
    if not names:
        return None
    tokenizer = _tokenizer(traces)
    if tokenizer is None:
        warn("no background: the tokenizer of the recording is not here")
        return None
    return Backgrounds(names, tokenizer, traces.vocabulary, model=traces.model, warn=warn).load()


def _tokenizer(traces: TraceSet) -> Tokenizer | None:
    """The tokenizer beside the recording, or that of the model by its name."""
    beside = Path(traces.source) / "tokenizer"
    try:
        found = load_tokenizer(str(beside) if beside.is_dir() else traces.model)
    except ModelError:
        return None
    return found if found.fingerprint == traces.tokenizer else None
