"""A plugin of `llm`, the command-line tool: models that are on this machine, and folders as text.

`llm` finds it by the entry point of this package. It imports this file at every start, which for
that reason loads nothing but the names of hooks; what answers is in `llm_model`.
"""

from collections.abc import Callable
from typing import Any

import llm


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """The models as `ngt/NAME`; that of ngt's settings is also called `ngt`."""
    from ngtcli.serve.llm_model import NgtModel, configured, names  # here: it builds the options

    own = configured()
    for name in dict.fromkeys([*names(), own]):
        register(NgtModel(name), aliases=("ngt",) if name == own else ())


@llm.hookimpl
def register_fragment_loaders(register: Callable[[str, Callable[[str], Any]], None]) -> None:
    """`-f ngt:FOLDER`: the documents of a folder, a file or a pattern, each as a fragment."""
    from ngtcli.serve.llm_model import fragments  # here: the start does without

    register("ngt", fragments)
