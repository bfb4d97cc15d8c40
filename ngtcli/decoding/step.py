"""One step of decoding: a forward pass that extends all sequences.

A step has six phases; `run_step` calls them in state:

1. *Draft.* The drafter of each sequence proposes a tree of tokens that may come next.
2. *Forward.* The model computes the logits after every node of all trees in one forward pass.
3. *Verify.* A walk starts at the root. At each node the model chooses a token by its logits; the
   walk continues as long as the node has a child with that token.
4. *Emit.* The tokens of the walk go to the log of the sequence, up to an end token or stop string.
5. *Keep.* The KV entries of the accepted nodes stay in the cache; the others are dropped.
6. *Learn.* The drafter sees which nodes were accepted, and the likeliest tokens after each node.

For example, an answer ends in "the", and its drafter proposes a tree of four nodes below it:

    the ─┬─ old ── harbour        nodes 0 and 1
         └─ harbour ── was        nodes 2 and 3

One forward pass over five query tokens, "the" and the four nodes, gives the logits after each of
them. After "the" the model chooses "harbour", which is node 2. After node 2 it chooses "was", which
is node 3. After node 3 it chooses "built", which is not a child of node 3: the walk ends. The step
emits "harbour was built". Two of these tokens were drafted. The last one is the bonus token, and
the root of the next tree. The KV entries of the root and of nodes 2 and 3 stay; those of nodes 0
and 1 are dropped. Whatever is drafted, each token is the one that the model chooses after all
tokens before it. In plain decoding the trees are empty.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ngtcli.decoding.draft_bounds import DraftBounds, draft_bounds
from ngtcli.decoding.exact import expect_tentative, part_that_counts
from ngtcli.decoding.logits import as_guesses, highest, likeliest, on_host, padded_rows
from ngtcli.decoding.memory_limits import ran_within_memory
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.sequence import DecodedSequence
from ngtcli.drafting.batch import Drafting
from ngtcli.drafting.drafter import Draft, Outcome
from ngtcli.drafting.guesses import Guessed
from ngtcli.drafting.steps import Stopwatch
from ngtcli.drafting.tree import ROOT, DraftTree, Path, verify
from ngtcli.errors import NgtError

_NO_DRAFT = DraftTree()
_NO_LOGITS = torch.empty(0)
_NO_PATH = Path((), ())
# Makes room in the KV cache for trees; returns False if there is not enough memory.
MakeRoom = Callable[[Sequence[DraftTree]], bool]


@dataclass(slots=True)
class _SequenceState:
    """The state of one sequence within a step; each phase adds to it.

    Attributes:
        tree: The tree to verify: a chain of the log's expected tokens, and below its end the draft,
            within its bounds.
        logits: (1 + nodes of the tree, vocab_size): after the root and after each node.
        chosen: The tokens that the model chooses after the root and after each node; None if they
            were not chosen on the device.
        top: The likeliest token ids after the root and each node, if the drafter wants them.
        path: The walk down the tree.
        emitted: The part of the walk to emit. Only in exact decoding can it be shorter than `path`.
    """

    sequence: DecodedSequence
    bounds: DraftBounds
    draft: Draft
    tree: DraftTree = _NO_DRAFT
    logits: Tensor = _NO_LOGITS
    chosen: list[int] | None = None
    top: Tensor | None = None
    path: Path = _NO_PATH
    emitted: Path = _NO_PATH


def run_step(
    model: TargetModel,
    sequences: Sequence[DecodedSequence],
    drafting: Drafting,
    make_room: MakeRoom,
    wait_for_device: Callable[[], None] | None = None,
) -> bool:
    """Extend sequences by one forward pass; add a step to each, or set its error.

    Args:
        model: The target model. Its slots have the sequences in this order.
        sequences: A single sequence, or a batch.
        drafting: What their drafters share.
        make_room: Makes room for the trees of a batch. For a single sequence it returns True,
            because `TargetModel.lay_out` makes the room.
        wait_for_device: Called at the end of each phase, so that times are right on asynchronous
            devices.

    Returns:
        False if there is not enough memory even without drafts. Then nothing is emitted.
    """
    watch = Stopwatch(wait_for_device)
    with watch("draft"):
        states = _draft(model, sequences, drafting)
    draft_end_s = watch.elapsed_s
    if states is None or not _forward(model, states, drafting, make_room, watch):
        return False
    with watch("verify"):
        _read_logits(states, with_top=drafting.max_nodes > 0)
        for state in states:
            _verify_and_emit(state)
    with watch("cache"):
        model.keep(*(state.emitted.kept_nodes for state in states))
    seconds = None if model.was_unusually_slow else watch.elapsed_s - draft_end_s
    with watch("draft"):
        _learn(states, seconds)

    rows = sum(len(state.logits) for state in states)
    for state in states:
        state.sequence.statistics.add_time(watch, len(state.logits), rows)
    return True


def _draft(
    model: TargetModel, sequences: Sequence[DecodedSequence], drafting: Drafting
) -> list[_SequenceState] | None:
    """Let the drafters propose a tree for each sequence; return None if there is not enough memory.

    A draft model or heads need memory, too. So before it gives up, it halves the maximum number of
    draft nodes repeatedly, down to none.
    """
    states: list[_SequenceState] = []

    def propose() -> None:
        shares = drafting.shares(len(sequences))
        bounds = [
            draft_bounds(sequence, max_nodes)
            for sequence, max_nodes in zip(sequences, shares, strict=True)
        ]
        drafts = drafting.propose(
            # Each has a drafter; the condition is for the type checker.
            [sequence.drafter for sequence in sequences if sequence.drafter is not None],
            [sequence.log for sequence in sequences],
            [bound.room for bound in bounds],
        )
        states[:] = map(_SequenceState, sequences, bounds, drafts)

    while not ran_within_memory(model, propose):
        if not drafting.max_nodes:
            return None
        drafting.max_nodes //= 2
        if model.reader is not None:
            # The heads' reader of hidden states holds memory, and may have read only some of them.
            model.reader.reset(model.length)
    for state in states:
        state.tree = state.bounds.tree(state.draft.tree)
    return states


def _forward(
    model: TargetModel,
    states: list[_SequenceState],
    drafting: Drafting,
    make_room: MakeRoom,
    watch: Stopwatch,
) -> bool:
    """Compute the logits of all trees; return False if there is not enough memory.

    Before it gives up, it cuts all trees to half the nodes of the largest, repeatedly, down to
    none. The same bound applies to later drafts. In exact decoding trees are not cut: the
    cache, and often the number of query tokens, have the size of the largest draft anyway, so that
    smaller trees would not save memory.
    """

    def score() -> None:
        with watch("tree"):
            layout = model.lay_out([(state.sequence.last_token, state.tree) for state in states])
        with watch("forward"):
            for state, logits in zip(states, model.score(layout), strict=True):
                state.logits = logits

    while not (make_room([state.tree for state in states]) and ran_within_memory(model, score)):
        is_exact = states[0].sequence.numerics.is_exact
        if is_exact or not any(len(state.tree) for state in states):
            return False
        drafting.max_nodes = max(state.tree.drafts for state in states) // 2
        for state in states:
            state.tree = state.tree.cut(len(state.tree), drafting.max_nodes, 0)
    return True


def _read_logits(states: list[_SequenceState], with_top: bool) -> None:
    """Copy the chosen and the likeliest tokens of all sequences to the host, in one copy.

    Verification needs the tokens that the model chooses; if sampling allows it, the device chooses
    them for all nodes at once. Drafters learn from the likeliest token ids after each node.

    Args:
        states: The states of the sequences.
        with_top: Whether drafters may learn from the logits; False if nothing is drafted.
    """
    on_device: list[Tensor | None] = []  # two for each sequence: chosen tokens, likeliest tokens
    for state in states:
        logits = padded_rows(state.logits, state.sequence.numerics.min_rows)
        on_device.append(state.sequence.chosen_on_device(logits, state.tree))
        wants_top = with_top and (state.draft.top_k or state.tree.probes)
        on_device.append(highest(state.logits, state.draft.top_k)[1] if wants_top else None)
    copies = on_host(on_device)
    for state, chosen, top in zip(states, copies[::2], copies[1::2], strict=True):
        state.chosen = None if chosen is None else chosen.tolist()
        state.top = top


def _verify_and_emit(state: _SequenceState) -> None:
    """Walk down the tree by the tokens that the model chooses, and emit them.

    In exact decoding only tokens whose logits are those of plain decoding are emitted (exact.py).
    The log expects the others, so that the next step verifies them again.
    """
    sequence = state.sequence
    exact_rows = sequence.numerics.rows  # None: not exact
    try:
        path = verify(state.tree, sequence.chooser(state.logits, state.chosen))
        emitted = path if exact_rows is None else part_that_counts(path, sequence.log, exact_rows)
        sequence.emit(emitted, state.tree)
    except NgtError as error:  # For example, the logits are not finite.
        sequence.error = error
        return
    if exact_rows is not None and not sequence.has_ended:
        expect_tentative(sequence.log, state.tree, path, emitted)
    state.path = path
    state.emitted = emitted


def _learn(states: list[_SequenceState], seconds: float | None) -> None:
    """Let each drafter learn from the result of its draft.

    Args:
        states: The states of the sequences.
        seconds: The time from the layout of the forward pass to the update of the cache; None if
            it is not typical.
    """
    numerics = states[0].sequence.numerics
    rows = numerics.padded(sum(len(state.logits) for state in states))
    for state in states:
        sequence = state.sequence
        if sequence.error is not None:
            continue
        outcome = Outcome()
        if state.top is not None:
            stop = state.path.nodes[-1] if state.path.nodes else ROOT
            after = partial(_likeliest_after, state.logits)
            outcome = Outcome(state.tree, state.top.numpy(), stop, after)
            # The tree begins with the expected tokens. If memory has cut even these short, nothing
            # of the draft was verified.
            outcome = outcome.without_front(len(state.bounds.front)) or Outcome()
        assert sequence.drafter is not None
        sequence.drafter.learn(sequence.log, replace(outcome, rows=rows, seconds=seconds))


def _likeliest_after(logits: Tensor, nodes: Sequence[int]) -> Guessed:
    """Return the likeliest tokens after some nodes."""
    return as_guesses(*likeliest(logits[[node + 1 for node in nodes]]))
