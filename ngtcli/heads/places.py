"""Finds the folder of a learned head before anything large is loaded. Imports no torch."""

from ngtcli.errors import ModelError, UsageError
from ngtcli.models.checkpoint import find

HINT = "Give a folder or Hugging Face id with a head that was trained for this model."
OWN = "mtp"  # a head's name that stands for the layers that come with the model


def find_head(name: str) -> str:
    """Return a head's folder, or its ID[@REVISION] if it has to be downloaded from the hub.

    Raises:
        ModelError: There is no such folder, and no such id on the hub.
        UsageError: The name is empty.
    """
    if not name:
        raise UsageError("the head's name is empty", hint=HINT)
    try:
        return find(name, (), only_folders=True)
    except ModelError as error:
        # The error speaks of a model; its hint may be about the network, which stays.
        message = str(error).removesuffix(" with a model")
        hint = HINT if error.hint.startswith("Give a folder") else error.hint
        raise ModelError(message, hint=hint) from None
