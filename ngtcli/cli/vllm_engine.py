"""`--engine vllm`: starts vLLM for a command, and ends it with the command."""

from typing import TYPE_CHECKING

from ngtcli.cli.notes import Notes
from ngtcli.config import Settings
from ngtcli.system import process

if TYPE_CHECKING:
    from ngtcli.engines.vllm_session import VllmSession


def open_vllm(settings: Settings, notes: Notes, sequences: int = 0) -> "VllmSession":
    """A session over a vLLM of its own; `sequences` at a time, 0 for as many as vLLM takes."""
    notes.status(f"Starting vLLM with {settings.model} …")
    from ngtcli.engines.vllm_engine import VllmEngine  # here: it loads torch

    engine = VllmEngine(settings, sequences)
    process.before_leaving(engine.close)
    from ngtcli.engines.vllm_session import VllmSession  # not before vLLM runs: it loads numba

    return VllmSession(settings, engine, notes.status, notes.warn)
