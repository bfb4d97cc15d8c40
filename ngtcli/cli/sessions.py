"""Opens what answers: ngt's own session, or `--engine vllm`, which ends with the command."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ngtcli.config import Settings
from ngtcli.system import process

if TYPE_CHECKING:
    from ngtcli.session.session import Session

Notify = Callable[[str], None]


def open_session(
    settings: Settings,
    status: Notify,
    warn: Notify,
    *,
    size: int | None = None,
    reading: Callable[[int, int], object] = lambda read, total: None,
) -> "Session":
    """What answers one text, or many: `size` together, 0: as many as it can. Loads the model.

    `reading` is told how many tokens of how many are read of a prompt.
    """
    if settings.engine == "vllm":
        status(f"Starting vLLM with {settings.model} …")
        from ngtcli.engines.vllm_engine import VllmEngine  # here: it loads torch

        engine = VllmEngine(settings, 1 if size is None else size)
        process.before_leaving(engine.close)
        from ngtcli.engines.vllm_session import VllmSession  # not before vLLM runs: it loads numba

        return VllmSession(settings, engine, status, warn)
    status("Starting …")
    from ngtcli.session.local import LocalSession  # here: it loads torch

    session = LocalSession(settings, status, warn, reading=reading)
    session.model.keep_prefixes(memory=size is not None)
    return session
