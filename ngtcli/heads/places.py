"""Where learned heads are, told before anything large is loaded. Imports no torch."""

from ngtcli.errors import ModelError, UsageError
from ngtcli.models.checkpoint import find

HINT = "Give a folder or hub id with a head that was trained for this model."
OWN = "mtp"  # in the place of a folder: the layers that come with the model


def find_head(name: str) -> str:
    """The folder of a head, or ID[@REVISION] for what the hub has and is to be downloaded.

    Raises ModelError where there is neither, and UsageError for "".
    """
    if not name:
        raise UsageError("the head's name is empty", hint=HINT)
    try:
        return find(name, (), plain=True)
    except ModelError as error:
        of_models = error.hint.startswith("Give a folder")
        what = str(error).removesuffix(" with a model")
        raise ModelError(what, hint=HINT if of_models else error.hint) from None
