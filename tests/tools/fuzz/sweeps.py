"""Hostile sweeps, specs of methods, and flags that contradict each other."""

from random import Random

from ngtcli.draft.registry import method_names
from tests.tools.fuzz.case import ANSWERED, INPUT, USAGE, Case, Place, case
from tests.tools.fuzz.odd import odd_word
from tests.tools.fuzz.world import ASKED, HARBOUR

_AXES = ("n", "lp", "num_draft", "method", "learn_output", "temperature", "stop", "x", "", "N")
_PARTS = ("5", "8", "5..8", "2..1", "1..9+3", "2..64*2", "..", "5..", "..5", "*", "+", "1e3", "-1",
          "0.5", "trie", "auto", "none", "trie:n=5", "true", "9" * 400, "1..1000", "é", " ", "٣",
          "0..0", "5..5", "2..9*1", "2..9+0", "1..9*0.5", "trtllm:max_draft_len=8")  # fmt: skip


def sweeps(rng: Random, place: Place) -> Case:
    """Sweeps of a recording, specs of methods, and flags that contradict each other."""
    make = rng.choice([_sweep, _sweep, _spec, _spec, _contradiction])
    return make(rng, place)


def _sweep(rng: Random, place: Place) -> Case:
    axes = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        body = ",".join(rng.choices([*_PARTS, odd_word(rng)], k=rng.choice([1, 1, 2, 4])))
        axes.append(f"{rng.choice(_AXES)}={body}")
    if rng.random() < 0.1:
        axes = [odd_word(rng)]
    return case(
        f"the sweep {' '.join(axes)[:60]!r}",
        ["tune", "--replay", str(place.world.recording), *(f"--sweep={a}" for a in axes),
         "--rounds", "1", "--limit", "1", "--json"],
        [ANSWERED, USAGE], seconds=60, memory=600_000_000,  # a thousand cells
    )  # fmt: skip


def _options() -> dict[str, tuple[str, ...]]:
    """Options of methods, as the README names them."""
    return {
        "auto": ("trust",), "prompt-lookup": ("max_matching_ngram_size", "num_output_tokens"),
        "llma": ("trigger_n", "block_k", "max_n"), "trie": ("n", "lp", "learn_output", "num_draft"),
        "akunu": ("max_order", "draft_count", "max_history"), "recycling": ("output_id_topk",),
        "trtllm": ("max_draft_len", "max_matching_ngram_size", "is_keep_all", "is_use_oldest"),
        "rest": ("datastore", "max_token_span", "k", "long", "choices", "cut"),
        "lookahead": ("level", "window_size", "guess_set_size", "pool_from_prompt"),
    }  # fmt: skip


def _spec(rng: Random, place: Place) -> Case:
    """A method's spec; where it is taken, the answer must be the plain one."""
    known = _options()
    name = rng.choice([*known, *known, odd_word(rng), *method_names()])
    keys = (*known.get(name, ("n",)), "x")
    values = ("0", "1", "3", "-1", "1000000", "9" * 30, "nan", "inf", "true", "", "../../x", "1e9")
    pairs = [
        f"{rng.choice(keys)}={rng.choice([*values, odd_word(rng)])}"
        for _ in range(rng.randint(0, 3))
    ]
    spec = ":".join([name, *pairs])
    # rest needs a datastore, suffix a library, draft-model a second model.
    return case(
        f"the method {spec[:60]!r}", [*ASKED["summary"], f"--method={spec}", "--json"],
        [ANSWERED, USAGE, INPUT], text=place.world.texts["summary"],
    )  # fmt: skip


def _contradiction(rng: Random, place: Place) -> Case:
    """Flags that would be ignored: each is refused."""
    replayed = ["bench", "--replay", str(place.world.recording), "--methods", "trie"]
    record, live = ["bench", "--record", "out", "--limit", "1"], ["bench", "--limit", "1"]
    tune = ["tune", "--sweep", "n=5,8", "lp=2"]
    arguments = rng.choice([
        [*record, "--html", "b.html"], [*record, "--methods", "none"], [*record, "--rounds", "3"],
        [*record, "--against", "hf"], [*live, "--methods", ","], [*live, "--methods", ""],
        [*replayed, "--rounds", "3"], [*replayed, "--template", "plain"], 
        [*replayed, "--turns", "all"],
        [*replayed, "--noise", "2"], [*replayed, "--against", "hf"], [*live, "--ids", "odd"],
        [*live, "--turns", "all"], [*live, "--num-draft", "8", "--sweep-num-draft"],
        [*live, "--json", "--markdown"], [*tune, "--ids", "odd"], [*tune, "--costs", "x"],
        [*tune, "--json", "--csv"], [*tune, "--n", "7"], ["trie", "build", HARBOUR, "--name", "x"],
        ["check", "--method", "none"], ["summarize", HARBOUR, "--n", "3", "--lp", "3"],
    ])  # fmt: skip
    return case(f"contradiction: {' '.join(arguments[-3:])[:50]}", arguments, [USAGE], seconds=60)
