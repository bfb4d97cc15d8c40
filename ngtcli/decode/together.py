"""Whether the model can decode several texts together (decoder.py)."""

from torch import Tensor

from ngtcli.decode.memory_limits import is_out_of_memory
from ngtcli.decode.model import TargetModel
from ngtcli.decode.scores import rounds, same_scores
from ngtcli.draft.tree import ROOT, DraftTree
from ngtcli.weights.trials import SPREAD, places_of

# Rotary frequencies that depend on the longest text of a pass: texts would change each other.
_ROPE_OF_LENGTH = {"dynamic", "longrope"}
_LENGTHS = 5, 9  # ids of the two texts that are tried; a guess


def why_not(model: TargetModel) -> str:
    """Why several texts cannot be decoded together; "" if they can.

    The first time that a model is asked about, its cache is emptied.
    """
    if model.joint_reason is None:
        model.joint_reason = _why_not(model)
    return model.joint_reason


def _why_not(model: TargetModel) -> str:
    if model.tree_reason or places_of(model.hf):
        return model.tree_reason or SPREAD
    rope = getattr(model.config, "rope_parameters", None) or {}
    kinds = {rope.get("rope_type")} | {v.get("rope_type") for v in rope.values() if type(v) is dict}
    if kinds & _ROPE_OF_LENGTH:
        return "its positions depend on the longest text of a pass"
    try:
        agrees = _agrees(model)
    except Exception as error:  # whatever a model's own code raises
        if is_out_of_memory(error):
            raise
        agrees = False
    return "" if agrees else "several texts in one pass get other scores than one does"


def _agrees(model: TargetModel) -> bool:
    """Whether two short texts, one with a draft, have the scores together that each has alone."""
    forked = DraftTree((1 % model.vocabulary, 2 % model.vocabulary), (ROOT, ROOT))
    texts = [[(7 * i + n) % model.vocabulary for i in range(n)] for n in _LENGTHS]
    roots = [(texts[0][-1], forked), (texts[1][-1], DraftTree())]
    truth, places = list[Tensor](), max(_LENGTHS) + len(forked)
    for ids, root in zip(texts, roots, strict=True):
        model.start(places)
        model.prefill(ids[:-1])
        truth.append(model.forward(*root).clone())
    for beside, ids in enumerate(texts):
        if beside:
            model.resize(len(texts), model.cache.places)
        model.start(places, beside=beside)
        model.prefill(ids[:-1])
    exact, found = not rounds(model.hf), model.score(model.lay_out(roots))
    model.close(0, 0)
    return all(same_scores(a, b, exact) for a, b in zip(map(list, found), truth, strict=True))
