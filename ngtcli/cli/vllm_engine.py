"""`--engine vllm`: starts vLLM for a command, and ends it with the command."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ngtcli.config import Settings
from ngtcli.system import process

if TYPE_CHECKING:
    from ngtcli.engines.vllm_session import VllmSession

Notify = Callable[[str], None]


def open_vllm(settings: Settings, size: int, status: Notify, warn: Notify) -> "VllmSession":
    """A session over a vLLM of its own; `size` answers at a time, 0: as many as vLLM takes."""
    status(f"Starting vLLM with {settings.model} …")
    from ngtcli.engines.vllm_engine import VllmEngine  # here: it loads torch

    engine = VllmEngine(settings, size)
    process.before_leaving(engine.close)
    from ngtcli.engines.vllm_session import VllmSession  # not before vLLM runs: it loads numba

    return VllmSession(settings, engine, status, warn)
