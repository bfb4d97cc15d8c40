"""Open an engine: over a model that is loaded here, or over vLLM, which ends with the command."""

from typing import TYPE_CHECKING

from ngtcli.config import Settings
from ngtcli.system import process, reporting

if TYPE_CHECKING:  # it loads numba, which is not to be loaded before vLLM runs
    from ngtcli.engine.engine import Engine


def open_engine(
    settings: Settings, *, size: int = 1, many: bool = False, stays: bool = False
) -> "Engine":
    """Load a model, and return the engine that answers with it.

    The caller's reporter gets the progress of loading, and later reports that belong to no request.

    Args:
        settings: The settings of the model and its engine.
        size: The maximum number of sequences in a batch if `many`; 0 for as many as fit.
        many: Whether many requests are answered, which share forward passes from the start.
        stays: Whether more questions follow, perhaps about the same documents.
    """
    if settings.engine.engine == "vllm":
        reporting.status(f"Starting vLLM with {settings.model.model} …")
        from ngtcli.engine.vllm.process import VllmEngine  # imported here: it loads torch

        vllm = VllmEngine(settings, size)
        process.before_leaving(vllm.close)
        from ngtcli.engine.vllm.session import VllmBatchEngine, VllmSession  # not before: numba

        return VllmBatchEngine(VllmSession(settings, vllm), size=size, many=many)
    reporting.status("Starting …")
    from ngtcli.engine.local import LocalSession  # imported here: it loads torch
    from ngtcli.engine.local_engine import LocalEngine

    session = LocalSession(settings, stand_ins=True, stays=many or stays)
    session.model.keep_prefixes(memory=many or stays)
    return LocalEngine(session, size=size if many else 0, many=many)
