"""Which token the target model chooses at a node: greedy, or one keyed draw.

The draw at a position depends on (seed, position) and the warped distribution alone, so a run gives
the same text with and without drafts, and each token follows the target distribution exactly.

The numbers of a draw are those of SplitMix64 (Steele, Lea & Flood 2014): number i of a key, of
which there is one for each (seed, position, level), is a hash in 64-bit integers, the same on every
device. A draw is an exponential race: the entry whose exponential number over its weight is least
wins in proportion to its weight. First blocks of BLOCK tokens race by their sums, then the tokens
of the block that won: the same distribution, and of 150,000 tokens only some 800 need a number.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ngtcli.config import Settings
from ngtcli.decoding.logits import best_tokens, highest
from ngtcli.decoding.replays import Replays
from ngtcli.decoding.sizes import row_size
from ngtcli.drafting.tree import ROOT, DraftTree

_Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def penalizes(settings: Settings) -> bool:
    """Whether scores depend on what was said before."""
    return settings.answer.repetition_penalty != 1.0 or bool(
        settings.answer.presence_penalty or settings.answer.frequency_penalty
    )


class Spoken:
    """The tokens of prompt and output, of which only the scores are changed.

    A call costs as much as there are different tokens, and one copy of the scores; a token that is
    committed is looked at once.
    """

    def __init__(self, settings: Settings, prompt: Sequence[int]) -> None:
        self._settings = settings
        # The repetition penalty counts the prompt, too, the others the output only.
        self._known = set(prompt) if settings.answer.repetition_penalty != 1.0 else set[int]()
        self._ids = torch.tensor(sorted(self._known), dtype=torch.long)
        self._times = torch.empty(0)  # (vocabulary,), of each token in the output
        self._new: list[int] = []  # committed, not yet counted

    def commit(self, tokens: Sequence[int]) -> None:
        """The output goes on with `tokens`."""
        self._new += tokens

    def gather(self, paths: Sequence[Mapping[int, int]]) -> list[_Ints]:
        """What `penalize` is to be given of the tokens that lead to each row, and of new output."""
        said = [(row, *one) for row, path in enumerate(paths) for one in path.items()]
        rows, tokens, counts = np.array(said, np.int64).reshape(-1, 3).T
        first = sorted(set(self._new) - self._known)
        self._known.update(first)
        new, self._new = self._new, []
        return [np.array(new, np.int64), np.array(first, np.int64), rows, tokens, counts]

    def penalize(self, scores: Tensor, given: Sequence[Tensor]) -> Tensor:
        """A penalised copy of float32 scores, (rows, vocabulary), by what `gather` gave."""
        new, first, rows, tokens, counts = given
        if not len(self._times):
            self._times = torch.zeros(scores.shape[1], device=scores.device)
            self._ids = self._ids.to(scores.device)
        if len(new):
            self._times.index_add_(0, new, torch.ones(len(new), device=scores.device))
            self._ids = torch.cat([self._ids, first])
        ids, times = self._ids, self._times
        changed = scores.index_copy(1, ids, self._weakened(scores.index_select(1, ids), times[ids]))
        if len(rows):
            weakened = self._weakened(scores[rows, tokens], counts + times[tokens])
            changed.index_put_((rows, tokens), weakened)
        return changed

    def _weakened(self, scores: Tensor, times: Tensor) -> Tensor:
        """The scores, (…, n), of tokens that were said, `times` (n,) of them in the output.

        The presence penalty is subtracted once, the frequency penalty for each time.
        """
        s = self._settings
        if (
            s.answer.repetition_penalty != 1.0
        ):  # as RepetitionPenaltyLogitsProcessor of `transformers`
            pick = torch.minimum if s.answer.repetition_penalty > 1.0 else torch.maximum
            scores = pick(
                scores * s.answer.repetition_penalty, scores / s.answer.repetition_penalty
            )
        if s.answer.presence_penalty or s.answer.frequency_penalty:
            once = s.answer.presence_penalty * times.clamp(max=1)
            scores = scores - once - s.answer.frequency_penalty * times
        return scores


BLOCK = 512  # tokens; derived: near the root of a vocabulary of 150,000, where numbers are fewest
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_BITS = 2**64


def keys_of(seed: int, positions: Sequence[int]) -> list[_Ints]:
    """The keys of the rows at these places in a text, int64 (rows,), of either level."""
    at = [_mix(_mix(seed) + position) for position in positions]
    return [
        np.array([_mix(key + level) for key in at], np.uint64).view(np.int64) for level in (0, 1)
    ]


def draw(weights: Tensor, of_blocks: Tensor, of_tokens: Tensor) -> Tensor:
    """A token for each row of `weights`, float32 (rows, vocabulary), not negative; int64 (rows,).

    The rows have keys of two levels. A row's token is -1 where a weight is not a number, or none is
    above 0.
    """
    rows, size = weights.shape
    if size % BLOCK:
        weights = torch.nn.functional.pad(weights, (0, -size % BLOCK))
    padded = weights.view(rows, -1, BLOCK)
    sums = padded.sum(-1, dtype=torch.float64)
    indices = torch.arange(max(sums.shape[1], BLOCK), device=weights.device)
    # A rounding error in the scores changes the winner of a race only where the two best differ by
    # less than the error; in a cumulative distribution errors would add up over all tokens.
    numbers = _numbers(of_blocks, indices[None, : sums.shape[1]])
    blocks = (sums / numbers).argmax(-1, keepdim=True)
    members = padded.gather(1, blocks[:, :, None].expand(-1, -1, BLOCK))[:, 0].double()
    tokens = blocks * BLOCK + indices[None, :BLOCK]
    places = (members / _numbers(of_tokens, tokens)).argmax(-1, keepdim=True)
    good = sums.sum(-1)
    bad = (good <= 0) | (good - good != 0)  # the second is true of what is not finite
    return tokens.gather(1, places)[:, 0].masked_fill(bad, -1)


def _numbers(keys: Tensor, indices: Tensor) -> Tensor:
    """Exponential numbers, float64 (rows, n), for `indices`, int64 (1 or rows, n), by keys."""
    state = keys[:, None] + (indices + 1) * _signed(_GOLDEN)
    state = (state ^ _shifted(state, 30)) * _signed(_MIX_1)
    state = (state ^ _shifted(state, 27)) * _signed(_MIX_2)
    state = state ^ _shifted(state, 31)
    # 52 bits and a half are exact in float64 and lie between 0 and 1, so that no number is 0.
    return -((_shifted(state, 12).double() + 0.5) * 2.0**-52).log()


def _shifted(values: Tensor, bits: int) -> Tensor:
    """`values` shifted to the right as unsigned numbers; torch shifts signed ones."""
    shifted: Tensor = (values >> bits) & ((1 << (64 - bits)) - 1)
    return shifted


def _mix(value: int) -> int:
    """The finalizer of SplitMix64 after one step, for a Python number; 64 bits."""
    value = (value + _GOLDEN) % _BITS
    value = (value ^ (value >> 30)) * _MIX_1 % _BITS
    value = (value ^ (value >> 27)) * _MIX_2 % _BITS
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    """The int64 with the bits of `value`, which torch takes."""
    return value - _BITS if value >= _BITS // 2 else value


# Of the likeliest tokens, looked at first for top-p; guess: mostly enough. On a device that is not
# the CPU no others are.
_FIRST, _MANY = 64, 1024
# The least temperature: below it a float32 has fewer digits, and 0 would be divided by 0 at last.
_TINY = torch.finfo(torch.float32).tiny


class Sampler:
    """Chooses tokens for one run, behind the run's `prompt` and the output committed so far.

    Temperature 0 is greedy. `replays` are those of draws on a model's device.
    """

    def __init__(
        self, settings: Settings, prompt: Sequence[int], replays: Replays | None = None
    ) -> None:
        self.settings, self._length, self._replays = settings, len(prompt), replays
        self._spoken = Spoken(settings, prompt) if penalizes(settings) else None

    def commit(self, tokens: Sequence[int]) -> None:
        """The output goes on with `tokens`."""
        self._length += len(tokens)
        if self._spoken is not None:
            self._spoken.commit(tokens)

    @torch.inference_mode()
    def choose(self, scores: Tensor, path: Sequence[int] = (), mask: Mask | None = None) -> int:
        """The token after the output and `path`, from its scores, shape (vocabulary,).

        Of those in `mask`, bool (vocabulary,), where it is given. -1 where the best score is not
        finite, or NaN. A token is drawn on the CPU: MPS knows no float64, and what `choices` leaves
        open on other devices is rare.
        """
        scores = self._scores_of(scores, path, mask)
        if self.settings.answer.temperature == 0.0:
            return int(best_tokens(scores)[0])
        keys = _sent(
            keys_of(self.settings.answer.seed, [self._length + len(path)]), torch.device("cpu")
        )
        return int(draw(warp(scores.cpu(), self.settings), *keys)[0])

    @torch.inference_mode()
    def probability(
        self, token: int, scores: Tensor, path: Sequence[int], mask: Mask | None
    ) -> float:
        """That of `token` at temperature 1, for what `choose` was given."""
        return float(self._scores_of(scores, path, mask)[0].log_softmax(-1)[token].exp())

    def _scores_of(self, scores: Tensor, path: Sequence[int], mask: Mask | None) -> Tensor:
        """Penalized, then masked, but NaN where a score was not finite: float32 (1, vocabulary)."""
        scores = scores[None].float()
        if self._spoken is not None:
            given = self._spoken.gather([Counter(path)])
            scores = self._spoken.penalize(scores, _sent(given, scores.device))
        if mask is None:
            return scores
        return torch.where(torch.from_numpy(mask).to(scores.device), scores, scores - torch.inf)

    @torch.inference_mode()
    def choices(self, scores: Tensor, tree: DraftTree) -> Tensor | None:
        """The tokens, int64, for scores (rows, vocabulary) after the root, each node, and padding.

        They are on the device, to which one tensor is sent, and nothing is read back. -1 where
        `choose` is to tell. None on a CPU, which chooses those of the path alone, and for draws on
        MPS.
        """
        where, draws = scores.device.type, self.settings.answer.temperature != 0.0
        return None if where == "cpu" or (draws and where == "mps") else self._rows(scores, tree)

    def _rows(self, scores: Tensor, tree: DraftTree) -> Tensor:
        if self._spoken is not None:
            said = _sent(self._spoken.gather(_paths(tree)), scores.device)
            scores = self._spoken.penalize(scores.float(), said)
        if self.settings.answer.temperature == 0.0:
            return best_tokens(scores)
        return self._drawn(scores, [self._length + depth for depth in (0, *tree.depths())])

    def _drawn(self, scores: Tensor, positions: Sequence[int]) -> Tensor:
        """Draws for rows at positions, in a pass of one of a few sizes."""
        settings, on = self.settings, scores.device
        size = row_size(on.type, len(scores))
        replays = self._replays or Replays("draws are", on)
        buffer = replays.buffer(size, scores.shape[1], torch.float32)
        buffer[: len(scores)] = scores
        keys = np.zeros((2, size), np.int64)
        keys[:, : len(positions)] = keys_of(settings.answer.seed, positions)

        def run(given: Tensor) -> tuple[Tensor]:
            return (draw(warp(buffer, settings), *given.view(2, size)),)

        how = (
            settings.answer.temperature,
            settings.answer.top_k,
            settings.answer.top_p,
            settings.answer.min_p,
        )
        (tokens,) = replays.run((size, *how), run, torch.from_numpy(keys).flatten())
        return tokens[: len(scores)]


def _paths(tree: DraftTree) -> list[dict[int, int]]:
    """How often each token leads to the root, and to each node."""
    paths: list[dict[int, int]] = [{}]
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        before = paths[parent - ROOT]
        paths.append({**before, token: before.get(token, 0) + 1})
    return paths


def _sent(parts: Sequence[_Ints], device: torch.device) -> tuple[Tensor, ...]:
    """Arrays on a device, to which they are sent as one."""
    if not parts:
        return ()
    whole = torch.from_numpy(np.concatenate(parts)).to(device, non_blocking=True)
    return torch.split(whole, [*map(len, parts)])


def warp(scores: Tensor, settings: Settings) -> Tensor:
    """Weights in proportion to the warped probabilities, float32 (rows, vocabulary).

    Temperature, top-k, top-p and min-p in the order of `transformers`' generate, with its
    meaning of each; but where tokens tie with the last one that survives, all of them survive.
    On a device all of a row are 0 whose `top_p` the likeliest _MANY tokens do not have.
    """
    if settings.answer.temperature not in (0.0, 1.0):
        # The highest is 0 then: none overflows, however low the temperature.
        scores = (scores - scores.amax(-1, keepdim=True)) / max(settings.answer.temperature, _TINY)
    weights = torch.softmax(scores, dim=-1)
    if 0 < settings.answer.top_k < scores.shape[-1]:
        weights = _cut(weights, highest(weights, settings.answer.top_k)[0][:, -1:])
    if settings.answer.top_p < 1.0:
        weights = _cut(weights, _least_of_mass(weights, settings.answer.top_p))
    if settings.answer.min_p > 0.0:
        weights = _cut(weights, settings.answer.min_p * weights.amax(-1, keepdim=True))
    return weights


def _cut(weights: Tensor, least: Tensor) -> Tensor:
    """0 for each row's weights below its `least`, (rows, 1); may change them in place."""
    return weights.masked_fill_(weights < least, 0.0)


def _least_of_mass(weights: Tensor, share: float) -> Tensor:
    """The least weight, (rows, 1), of the fewest highest ones that have `share` of a row's sum."""
    on_cpu = weights.device.type == "cpu"
    wanted = share * weights.sum(-1, keepdim=True, dtype=torch.float64)
    best = highest(weights, _FIRST if on_cpu else _MANY)[0]
    mass = best.cumsum(-1, dtype=torch.float64)
    lacks = mass[:, -1:] < wanted
    if on_cpu and bool(lacks.any()):
        # numpy sorts 150,000 weights in 0.5 ms with AVX-512, torch in 12 (measured)
        best = torch.from_numpy(np.sort(weights.numpy())).flip(-1)
        mass = best.cumsum(-1, dtype=torch.float64)
    last = ((mass - best) < wanted).sum(-1, keepdim=True) - 1
    least = best.gather(-1, last.clamp_min(0))
    return least if on_cpu else least.masked_fill(lacks, torch.inf)
