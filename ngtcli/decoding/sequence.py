"""A sequence: an answer that is being decoded, with everything that decides its next tokens."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from ngtcli.config import Settings
from ngtcli.decoding.exactness.numerics import NOT_EXACT, Numerics
from ngtcli.decoding.guide import Guide
from ngtcli.decoding.kv_cache import CachePolicy
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.logits import logits_are_not_numbers
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.output import Output
from ngtcli.decoding.sampling import Sampler
from ngtcli.drafting.batch import Drafting
from ngtcli.drafting.drafter import Context, Drafter
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.origins import PREDICTED, PolicyReport
from ngtcli.drafting.steps import OWN, Statistics, Step
from ngtcli.drafting.tree import DraftTree, Path
from ngtcli.errors import ContextOverflowError, NgtError

Choose = Callable[[int, Sequence[int]], int]  # the argument `choose` of `verify`


class DecodedSequence:
    """A prompt and its answer; a `Decoder` extends the answer step by step.

    Its tokens are in `log` and nowhere else. So it may leave a decoder at any time, even after a
    forward pass that failed, and continue in another one, which prefills its tokens again.

    Args:
        model: The target model.
        context: The prompt, and the tries and texts to draft from.
        settings: All settings; the sampler uses those of sampling.
        limits: The limits of the answer.
        make_drafter: Makes the drafter if the sequence is decoded alone. Those of a batch are made
            by its `Drafting` (drafting/batch.py).
        numerics: Whether and how it is decoded exactly; in a batch it is not.
        cache_policy: How its prompt may use the prefix cache; None: it is not cached.

    Attributes:
        log: Its tokens: the prompt, the emitted ones, the expected ones.
        output: The texts of the emitted tokens, and the reason that the answer ended.
        sampler: Chooses the tokens that follow the emitted ones, by their logits.
        guide: The state of the grammar, if there is one.
        drafter: The current drafter; None before the first and after the last step.
        needed_entries: The KV entries that are reserved for it.
        statistics: The sums over its steps.
        steps: The steps that `take_steps` has not returned yet.
        policy: The decisions of its drafter's policy, once it has ended.
        error: The error that ended it; None if there was none.

    Raises:
        ContextOverflowError: The prompt leaves no room for a single token.
    """

    def __init__(
        self,
        model: TargetModel,
        context: Context,
        settings: Settings,
        limits: Limits,
        make_drafter: Callable[[], Drafter],
        numerics: Numerics = NOT_EXACT,
        cache_policy: CachePolicy | None = None,
    ) -> None:
        room = room_for_output(model, len(context.ids))
        self.context = replace(
            context,
            chains=model.takes_chains,
            free_nodes=numerics.has_one_shape,
            probes_count=numerics.is_exact,
        )
        self.limits = limits
        self.make_drafter = make_drafter
        self.numerics = numerics
        self.cache_policy = cache_policy

        self.log = TokenLog(context.ids)
        self.output = Output(
            self.log,
            model.tokenizer,
            limits,
            min(limits.max_output, room),
            _max_reasoning(limits, room),
        )
        self.sampler = Sampler(settings, context.ids, model.draws)
        self.guide: Guide | None = None
        if limits.grammar is not None:
            self.guide = Guide(limits.grammar.start(), self.output.stream)

        self.drafter: Drafter | None = None
        self.needed_entries = 0
        self.statistics = Statistics(prompt_tokens=len(context.ids))
        self.steps: list[Step] = []
        self.policy: PolicyReport | None = None
        self.error: NgtError | None = None
        self._model = model
        self._has_prediction = len(context.predicted) > 0
        # The probabilities of the tokens that the last walk chose, if the limits ask for them.
        self._probabilities: list[float] = []

    # --- state ---

    @property
    def token_ids(self) -> list[int]:
        """The emitted tokens, including an end token."""
        return self.log.output

    @property
    def last_token(self) -> int:
        """The last token of prompt and output: the root of a draft tree."""
        return self.log.token_ids[self.log.settled - 1]

    @property
    def finish_reason(self) -> str:
        """Why the sequence has ended, as in its last step; "" if it has not."""
        return self.output.finish_reason

    @property
    def has_ended(self) -> bool:
        """Whether the sequence has no further steps."""
        return self.error is not None or bool(self.finish_reason)

    @property
    def is_exact(self) -> bool:
        """Whether the tokens are independent of the drafts in every dtype."""
        return self.numerics.is_exact or not self._model.takes_drafts

    @property
    def max_length(self) -> int:
        """The maximum number of tokens of prompt and output."""
        return self.log.prompt_length + self.output.max_tokens

    @property
    def max_depth(self) -> int:
        """The maximum depth of a draft; one more token can be emitted after it."""
        return self.output.tokens_left - 1

    @property
    def context_left(self) -> int:
        """The number of tokens until the sequence must be prefilled again (LongRoPE)."""
        return self._model.context_left(self.log.settled)

    @property
    def batch_context(self) -> Context:
        """The context for drafters of a batch, whose forward passes have other shapes."""
        return replace(self.context, free_nodes=False, probes_count=False)

    def leave_exactness(self) -> None:
        """Give up exact decoding, in a batch and after one."""
        self.numerics = NOT_EXACT
        self.context = self.batch_context

    def single_drafting(self) -> Drafting:
        """Return the drafting of the sequence if it is decoded alone."""
        max_nodes = self.limits.num_draft if self._model.takes_drafts else 0
        if self.numerics.rows is not None:
            max_nodes = min(max_nodes, self.numerics.rows.max - 1)
        return Drafting(lambda context: self.make_drafter(), max_nodes)

    # --- verification: the model's token at each node ---

    def chosen_on_device(self, logits: Tensor, tree: DraftTree) -> Tensor | None:
        """Return the tokens of all rows, as `Sampler.choices` does, if they can be chosen at once.

        Returns:
            None if tokens are drawn from those that a grammar allows. Greedy choices ignore the
            grammar: it allows most of them, and `chooser` checks each.
        """
        draws = self.sampler.settings.answer.temperature != 0.0
        if draws and self.guide is not None and self.guide.grammar_decides:
            return None
        return self.sampler.choices(logits, tree)

    def chooser(self, logits: Tensor, chosen: list[int] | None) -> Choose:
        """Return the argument `choose` of `verify`.

        Args:
            logits: (k + 1, vocab_size), after the root and k nodes.
            chosen: The tokens of these rows; -1 for a row that `Sampler.choose` has to decide.
                None: it decides all of them.

        Returns:
            A function of a node and the tokens from the root to it. Each call must be for
            a child of the node before. It raises ModelError for logits that are NaN
            or all infinite.
        """
        self._probabilities = []
        stream = self.output.stream
        guide = self.guide
        may_reason = guide is not None and not guide.grammar_decides
        ahead = stream.copy() if may_reason or stream.may_force(len(logits)) else None
        if guide is not None:
            guide = guide.copy_for(ahead or stream)

        def choose(node: int, path: Sequence[int]) -> int:
            if path:
                if guide is not None:
                    guide.push(path[-1])
                if ahead is not None:
                    ahead.push(path[-1])
            row = logits[node + 1]
            forced = ahead.forced if ahead is not None else None
            if forced is not None:
                token = forced
            else:
                token = self._choose(row, path, guide, -1 if chosen is None else chosen[node + 1])
            if token < 0:
                raise logits_are_not_numbers(self._model.name)
            if self.limits.probabilities:
                mask = guide.mask() if guide is not None else None
                self._probabilities.append(self.sampler.probability(token, row, path, mask))
            return token

        return choose

    def _choose(self, row: Tensor, path: Sequence[int], guide: Guide | None, chosen: int) -> int:
        """Return the token after a path that the grammar allows; -1 if the logits are not finite.

        Args:
            row: The logits, (vocab_size,).
            path: The tokens from the root to the node.
            guide: The state of the grammar after the path.
            chosen: The token that the device has chosen without the grammar, or -1.
        """
        is_free = guide is None or guide.openings is None
        if is_free or self.sampler.settings.answer.temperature == 0.0:
            token = chosen if chosen >= 0 else self.sampler.choose(row, path)
            if guide is None or token < 0 or guide.allows(token):
                return token
        return self.sampler.choose(row, path, guide.mask() if guide else None)

    # --- emission ---

    def emit(self, path: Path, tree: DraftTree) -> int:
        """Emit the tokens of a path, up to the end of the answer, and add a step.

        Args:
            path: The walk.
            tree: The tree that was verified.

        Returns:
            The number of emitted tokens.
        """
        tokens = []
        for i, token_id in enumerate(path.tokens):
            origin = tree.origin(path.nodes[i]) if i < len(path.nodes) else OWN
            finish_reason = ""
            if self.guide is not None:
                self.guide.push(token_id)
                finish_reason = "stop" if self.guide.matcher.over else ""
            is_end = token_id in self._model.end_ids
            token = self.output.append(token_id, is_end, origin, finish_reason)
            if self._probabilities:
                token = replace(token, probability=self._probabilities[i])
            tokens.append(token)
            if self.finish_reason:
                break

        self.sampler.commit([token.id for token in tokens])
        self.statistics.add_step(tree.drafts, min(len(path.kept_nodes), len(tokens)), len(tokens))
        predicted = 0
        if self._has_prediction:
            predicted = tree.drafts_of(PREDICTED)
            accepted = sum(token.origin == PREDICTED for token in tokens)
            self.statistics.add_predicted(predicted, accepted)
        if self.limits.thinking:
            self.statistics.thought_tokens = self.output.stream.reasoning_tokens
        self.steps.append(Step(tuple(tokens), self.finish_reason, tree.drafts, predicted))
        return len(tokens)

    def interrupt(self) -> None:
        """End the sequence as interrupted, unless it has ended."""
        self.output.finish_reason = self.output.finish_reason or "interrupted"

    def take_steps(self) -> list[Step]:
        """Return the steps since the last call."""
        steps = self.steps
        self.steps = []
        return steps


def room_for_output(model: TargetModel, prompt_tokens: int) -> int:
    """Return how many tokens the context has after a prompt. Raises ContextOverflowError."""
    if not prompt_tokens:
        raise ContextOverflowError("the prompt is empty", hint="Give some text.")
    if prompt_tokens >= model.context:
        problem = (
            f"the prompt has {prompt_tokens} tokens, the model takes at most {model.context - 1}"
        )
        raise ContextOverflowError(problem, hint=model.context_why or "Shorten the prompt.")
    return model.context - prompt_tokens


def _max_reasoning(limits: Limits, room: int) -> int:
    """Return how many of the `room` tokens may be reasoning."""
    if limits.thinking is None:
        return 0
    for_answer = min(limits.max_tokens, room // 2) + len(limits.thinking.closing)
    return min(limits.thinking.max_tokens, max(0, room - for_answer))
