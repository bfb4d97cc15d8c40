"""Opens what answers: a model that is loaded here, or vLLM, which ends with the command."""

from typing import TYPE_CHECKING

from ngtcli.config import Settings
from ngtcli.engine.events import Message, Report
from ngtcli.system import process

if TYPE_CHECKING:  # it loads numba, which is not to be loaded before vLLM runs
    from ngtcli.engine.engine import Engine


def open_engine(
    settings: Settings, report: Report, *, size: int = 1, many: bool = False, stays: bool = False
) -> "Engine":
    """What answers, its model loaded: one question after another, or `many` texts.

    Of these `size` are answered together; 0: as many as it can. `stays`: other questions follow,
    perhaps about the same documents.
    """
    if settings.engine == "vllm":
        report(Message("status", f"Starting vLLM with {settings.model} …"))
        from ngtcli.engine.vllm.process import VllmEngine  # here: it loads torch

        vllm = VllmEngine(settings, size)
        process.before_leaving(vllm.close)
        from ngtcli.engine.vllm.session import VllmSession, VllmTexts  # not before: numba

        return VllmTexts(VllmSession(settings, vllm, report), size=size, many=many)
    report(Message("status", "Starting …"))
    from ngtcli.engine.local import LocalSession  # here: they load torch
    from ngtcli.engine.local_engine import LocalEngine

    session = LocalSession(settings, report, stand_ins=True)
    session.model.keep_prefixes(memory=many or stays)
    return LocalEngine(session, size=size if many else 0, many=many)
