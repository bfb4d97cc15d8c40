"""The decoding loop: draft, one pass, verify, commit. Plain decoding has empty drafts.

A single text is a batch of one. What texts decoded together need besides is in batch.py.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ngtcli.config import Settings
from ngtcli.decode.continuation import Continuation
from ngtcli.decode.exact import ExactDrafters
from ngtcli.decode.kv_cache import Keeping
from ngtcli.decode.memory_limits import fits, read_prompt, too_long
from ngtcli.decode.model import TargetModel
from ngtcli.decode.scores import guessed, highest
from ngtcli.draft.drafter import Context, Drafter, Drafters, Feedback, PassRows
from ngtcli.draft.guesses import Guessed
from ngtcli.draft.origins import PolicyReport
from ngtcli.draft.steps import InSteps, Limits, Step, Stopwatch
from ngtcli.draft.tree import ROOT, DraftTree, Path, verify
from ngtcli.errors import NgtError

_NOTHING = Path((), ())


@dataclass(slots=True, eq=False)
class Member:
    """A text that is decoded; `given` is what the caller knows it by.

    `keeping` says what is kept of its prompt, None: nothing. `steps` are those that it has done,
    `policy` is what its drafter reports at the end, `error` what it ended with, if it did. One that
    is `crowded` was left off, as memory does not suffice even for it alone with what a batch needs;
    a run of its own may need less.
    """

    given: Any
    text: Continuation
    context: Context
    keeping: Keeping | None = None
    drafter: Any = None
    steps: list[Step] = field(default_factory=list)
    policy: PolicyReport | None = None
    error: NgtError | None = None
    crowded: bool = False

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self.error is not None or bool(self.text.finish_reason)


# What a pass does for one text: its last token, and the draft below it.
Root = tuple[int, DraftTree]


class Target(Protocol):
    """The target model over the texts of a pass."""

    @property
    def took_longer(self) -> bool:
        """Whether the last pass was one of those that take longer than others of their size."""

    def score(self, roots: Sequence[Root], watch: Stopwatch) -> list[Tensor]:
        """For each text, scores (k + 1, vocabulary) after its root and its k nodes."""

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep, of each text's rows in the last pass, those of its root and of these nodes."""


class SingleTarget:
    """The model over one text, in its own cache."""

    def __init__(self, model: TargetModel) -> None:
        self._model = model

    @property
    def took_longer(self) -> bool:
        return self._model.took_longer

    def score(self, roots: Sequence[Root], watch: Stopwatch) -> list[Tensor]:
        with watch("tree"):
            layout = self._model.lay_out(*roots[0])
        with watch("forward"):
            return [self._model.score(layout)]

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        self._model.keep(paths[0])


class Loop:
    """Does the steps of texts: `step` is one for each of them, by one pass.

    A text's statistics have its share of a step's seconds, in proportion to its rows of the pass,
    so those of all texts add up to what the steps took. With `split_times` the device is waited for
    between the parts of a step, so that `split_s` has the time of each on an asynchronous device,
    too.
    """

    def __init__(
        self, model: TargetModel, target: Target, drafters: Drafters[Any], split_times: bool = False
    ) -> None:
        self._model, self._target, self._drafters = model, target, drafters
        self._wait = model.finish_device_work if split_times else None

    def step(self, members: Sequence[Member]) -> bool:
        """One step, from the drafts to what is learned from their outcome.

        False, and nothing is done, where memory does not suffice even without drafts.
        """
        watch, drafters = Stopwatch(self._wait), self._drafters
        with watch("draft"):
            trees = drafters.propose([m.drafter for m in members], [m.text for m in members])
        drafting_s = watch.elapsed_s
        scored = self._score(members, trees, watch)
        if scored is None:
            return False
        trees, scores = scored
        with watch("verify"):
            paths = [*map(self._emit, members, trees, scores)]
        with watch("draft"):
            for member, tree, rows, path in zip(members, trees, scores, paths, strict=True):
                self._learn(member, tree, rows, path.nodes[-1] if path.nodes else ROOT)
        with watch("cache"):
            self._target.keep([path.rows for path in paths])
        rows_in_all = sum(map(len, scores))
        with watch("draft"):
            if not self._target.took_longer:
                passed = drafters.rows.padded(rows_in_all) if drafters.rows else rows_in_all
                drafters.spent(passed, watch.elapsed_s - drafting_s)
            going = [(m, path) for m, path in zip(members, paths, strict=True) if m.error is None]
            emitted = [[token.id for token in m.steps[-1].tokens] for m, _ in going]
            drafters.observe([m.drafter for m, _ in going], emitted)
            for member, path in going:
                member.text.commit(member.steps[-1], len(path.rows))
        for member, rows in zip(members, scores, strict=True):
            member.text.statistics.add_time(watch, len(rows), rows_in_all)
        return True

    def _score(
        self, members: Sequence[Member], trees: list[DraftTree], watch: Stopwatch
    ) -> tuple[list[DraftTree], list[Tensor]] | None:
        """The trees and their scores; None where memory does not suffice.

        Before, drafts are cut to half their nodes, and none to come is larger. In an exact run they
        are not: its capacity is that of the largest, often its rows are too.
        """
        found: list[list[Tensor]] = []

        def work() -> None:
            roots = [(m.text.ids[-1], tree) for m, tree in zip(members, trees, strict=True)]
            found.append(self._target.score(roots, watch))

        while not fits(self._model, work):
            if self._drafters.rows or not any(map(len, trees)):
                return None
            self._drafters.most = max(tree.drafts for tree in trees) // 2
            trees = [tree.cut(len(tree), self._drafters.most, 0) for tree in trees]
        return trees, found[0]

    def _emit(self, member: Member, tree: DraftTree, scores: Tensor) -> Path:
        """The accepted path, its tokens emitted; nothing where scores are not numbers."""
        text = member.text
        chosen = text.sampler.choose_all(*self._padded(scores, [0, *tree.depths()]))
        try:
            path = self._drafters.accept(tree, verify(tree, text.chooser(scores, chosen)))
        except NgtError as error:
            member.error = error
            return _NOTHING
        member.steps.append(text.emit(path, tree))
        return path

    def _padded(self, scores: Tensor, depths: list[int]) -> tuple[Tensor, list[int]]:
        """As many rows for any draft: a GPU may add up one row in another order than several."""
        missing = (self._drafters.rows.least if self._drafters.rows else 0) - len(scores)
        if scores.device.type == "cpu" or missing < 1:
            return scores, depths
        return torch.cat([scores, scores[:1].expand(missing, -1)]), depths + [0] * missing

    def _learn(self, member: Member, tree: DraftTree, scores: Tensor, stop: int) -> None:
        """Give the drafter the best ids of each row, if it asks for them."""
        top_k = member.drafter.top_k
        if not (self._drafters.most and member.error is None and (top_k or tree.probes)):
            return
        top = highest(scores, top_k)[1].cpu().numpy()

        def after(nodes: Sequence[int]) -> Guessed:
            return guessed(scores[[node + 1 for node in nodes]])

        self._drafters.learn(member.drafter, Feedback(tree, top, stop, after))


class Run(InSteps):
    """One generation: iterate over it for its steps, or `finish` it.

    `output` are the ids emitted, end token included, `statistics` what the run has done so far.
    `rows` are those of exact passes, None for others; `exact`: in any dtype the tokens do not
    depend on what is drafted. `split_times` as in Loop. `progress` is called with the number of ids
    of the prompt that are read; `text` takes the place of a usual continuation; `keeping` says what
    is kept of the prompt.
    Raises ContextOverflowError when the prompt leaves no room for a single token.
    """

    def __init__(
        self,
        model: TargetModel,
        drafter: Drafter,
        context: Context,
        sampling: Settings,
        limits: Limits,
        split_times: bool = False,
        progress: Callable[[int], object] = lambda _: None,
        text: Continuation | None = None,
        keeping: Keeping | None = None,
    ) -> None:
        context = replace(context, chains=model.takes_chains)
        self.model, self.drafter, self.context, self.limits = model, drafter, context, limits
        self._progress, text = progress, text or Continuation(model, context, sampling, limits)
        self.output, self.statistics = text.output, text.statistics
        self._member = Member(None, text, context, keeping)
        # A model that decodes plainly is exact without exact drafting.
        self._drafters = Drafters(lambda: drafter, 0 if model.plain_reason else limits.num_draft)
        if context.rows is not None and not model.plain_reason:
            self._drafters = ExactDrafters(drafter, context.rows, limits.num_draft, context.ids)
        self.rows = PassRows.fixed(1) if model.plain_reason else self._drafters.rows
        self.exact = self.rows is not None
        self._loop = Loop(model, SingleTarget(model), self._drafters, split_times)

    @property
    def continuation(self) -> Continuation:
        """The text that grows."""
        return self._member.text

    @property
    def finish_reason(self) -> str:
        """Why the run has ended, as in its last step; "" before."""
        return self._member.text.finish_reason

    @property
    def proposed(self) -> bool:
        """Whether the drafter was queried in the last step."""
        return self._drafters.proposed

    def __iter__(self) -> Iterator[Step]:
        member = self._member
        self._prefill()
        try:
            while not self.finish_reason:
                if not self._loop.step([member]):
                    raise too_long(len(member.text.ids))
                if member.error is not None:
                    raise member.error
                yield member.steps.pop()
        finally:
            self._drafters.end()

    def _prefill(self) -> None:
        clock, text = time.perf_counter(), self._member.text
        self._start()
        rows = self._drafters.rows
        room = text.most + (0 if rows else self.limits.num_draft + 1)
        keeping, ids = self._member.keeping, text.ids[:-1]
        more: dict[str, Any] = {"rows": rows, "keeping": keeping, "reader": self.drafter.heads}
        read_prompt(self.model, ids, room, self._progress, **more)
        self.statistics.add_prefill(time.perf_counter() - clock, self.model.reused)

    def _start(self) -> None:
        """Start the drafter on the prompt."""
        member = self._member
        member.drafter = self._drafters.start(self.context)
        if member.text.output:  # it goes on
            self._drafters.observe([member.drafter], [member.text.output])
