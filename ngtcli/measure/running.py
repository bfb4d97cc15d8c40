"""Cells on a model that runs: each answers as it would answer a user."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ngtcli.config import Settings
from ngtcli.errors import counted
from ngtcli.measure.contestants import BASELINE, answered
from ngtcli.measure.grid import Cell
from ngtcli.measure.prompts import Item
from ngtcli.measure.recording import digest, timed_trie, with_trie
from ngtcli.measure.records import Answering, Contestant, Generation, Notify
from ngtcli.prompt.build import Prompt
from ngtcli.prompt.preset import Preset
from ngtcli.session.answer import AnswerOptions
from ngtcli.session.local import LocalSession
from ngtcli.trie.store import TrieReport


class Running:
    """A model that answers; every prompt is one document, or one of the questions about it."""

    def __init__(
        self,
        settings: Settings,
        preset: Preset,
        items: Sequence[Item],
        progress: Notify,
        warn: Notify,
    ) -> None:
        self._preset, self.prompts = preset, items
        self._progress, self._warn = progress, warn
        self._sessions: dict[tuple[str, ...], LocalSession] = {}
        self._loading = False
        model = self._session(settings).model
        prompts = [(i.id, [d.text for d in i.documents], i.question) for i in items]
        self.about: dict[str, Any] = {
            "source": "live",
            "model": settings.model,
            "device": f"{_device(model.device)}, {str(model.dtype).removeprefix('torch.')}",
            "data": f"{counted(len(items), 'prompt')} of preset {preset.name}",
            "data_sha256": digest([preset.template, prompts]),
            "prompts": len(items),
        }

    def _session(self, settings: Settings) -> LocalSession:
        """A new session of a model, which is loaded and warmed up once."""
        key = (settings.model, settings.draft_model, settings.device, settings.dtype)
        if key not in self._sessions:
            self._loading = True
            session = LocalSession(settings, self._say, self._warn, persist=False)
            self._sessions[key] = session
            short = session.with_settings(replace(settings, max_tokens=min(8, settings.max_tokens)))
            prompt = self._prompt(short, self.prompts[0])
            short.answer(prompt, AnswerOptions(BASELINE, to_the_end=True)).finish()
            self._loading = False
        return self._sessions[key].with_settings(settings)

    def _prompt(self, session: LocalSession, item: Item) -> Prompt:
        return session.prompt(self._preset, item.documents, item.question)

    def _say(self, message: str) -> None:
        """What a session is doing, but while cells are measured: how far that is says more."""
        if self._loading:
            self._progress(message)

    def contestant(self, cell: Cell) -> Contestant[Item]:
        """The model with the settings of `cell`, as it answers a user; its trie is built anew."""
        return Contestant(cell.label, None, partial(self._begin, cell.settings))

    def _begin(self, settings: Settings) -> Answering[Item]:
        session = self._session(settings)
        method, drafter = session.parse_method(), session.new_drafter(settings.method)
        own, options = method.settings, AnswerOptions(drafter=drafter, to_the_end=True)
        tries = method.entry.documents and not session.model.plain_reason

        def answer(item: Item) -> Generation:
            prompt = self._prompt(session, item)
            if not tries:
                return answered(session, prompt, options)
            ids = [session.model.tokenizer.encode(d.text.strip()) for d in prompt.documents]
            trie, seconds, size = timed_trie(ids, own.n, own.lp)
            made = answered(session, prompt, replace(options, trie=(trie, TrieReport("built"))))
            return with_trie(made, seconds, size)

        return answer


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{device.type} with {counted(threads, 'thread')}"
