"""Tables and result pages as exact strings, at several widths, with hostile names."""

import csv
import io
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from ngtcli.documents.find import Skipped
from ngtcli.measure.grid import Refusal
from ngtcli.measure.results import (
    Invocation,
    LiveResult,
    Machine,
    PromptRow,
    QualityResult,
    ReplayResult,
)
from ngtcli.measure.summary import PromptTimes, QualityRow, Row, SplitRow
from ngtcli.render.page import rendered
from ngtcli.render.results import facts, forms_of, tables
from ngtcli.render.tables import (
    Column,
    Shaded,
    Table,
    cell,
    fit,
    full_width,
    to_csv,
    to_markdown,
    to_plain,
    to_tabs,
    to_terminal,
)
from ngtcli.render.terminal import visible
from ngtcli.system.json_form import dump_json, to_json
from tests.support.browser import Page


def to_html(table: Table) -> str:
    return rendered("table.html.j2", table=table)


HOSTILE = '<script>alert("1")</script>|\x1b[31m*x*'
SMALL = Table(
    "Two rows",
    [Column("method", left=True), Column("speed-up"), Column("same ids", 1), Column("MiB", 2)],
    [["none", "1.00×", "4/4", "19.3"], ["a|b\n[bold]", "2.10×", "4/4", "7.0"]],
    "A note.",
)


def test_a_pipe_gets_tabs_and_headings() -> None:
    assert to_plain([SMALL, SMALL]).split("\n\n")[0] == (
        "# Two rows\n"
        "method\tspeed-up\tsame ids\tMiB\n"
        "none\t1.00×\t4/4\t19.3\n"
        "a|b [bold]\t2.10×\t4/4\t7.0"
    )


def test_markdown_tables_escape_what_markdown_reads() -> None:
    assert to_markdown([SMALL]) == (
        "### Two rows\n\n"
        "| method | speed-up | same ids | MiB |\n"
        "|---|---:|---:|---:|\n"
        "| none | 1.00× | 4/4 | 19.3 |\n"
        "| a\\|b \\[bold\\] | 2.10× | 4/4 | 7.0 |\n\n"
        "A note."
    )


def test_without_a_title_no_form_has_a_heading() -> None:
    table = replace(SMALL, title="")
    assert to_plain([table]).startswith("method\t")
    assert to_markdown([table]).startswith("| method |")
    assert "<caption>" not in to_html(table)
    assert to_terminal([table], width=40, colour=False).split("\n")[1].startswith("method")
    assert to_tabs(SMALL.rows) == "none\t1.00×\t4/4\t19.3\na|b [bold]\t2.10×\t4/4\t7.0"


def test_heat_is_a_background_and_goes_with_its_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    heats = [[None, 0.0, None, 1.0], [None, 1.0, None, 0.5]]
    rows = [
        [text if heat is None else Shaded(text, heat) for text, heat in zip(*pair, strict=True)]
        for pair in zip(SMALL.rows, heats, strict=True)
    ]
    table = replace(SMALL, rows=rows)
    painted = to_terminal([table], width=40)
    assert [painted.count(f"48;5;{colour}m") for colour in (255, 157, 83)] == [1, 1, 2]
    left = [[getattr(text, "heat", None) for text in row] for row in fit(table, 24)[0].rows]
    assert left == [[None, 0.0], [None, 1.0]]
    assert "48;5;" not in to_terminal([SMALL], width=40)
    cells = re.findall(r'<td style="--heat:(\d+)">([^<]*)', to_html(table))
    assert cells == [("0", "1.00×"), ("100", "19.3"), ("100", "2.10×"), ("50", "7.0")]
    assert to_plain([table]) == to_plain([SMALL]) and to_markdown([table]) == to_markdown([SMALL])


@settings(max_examples=40)
@given(st.lists(st.tuples(st.text(), st.text(max_size=9)), max_size=4), st.integers(20, 90))
def test_no_text_breaks_a_table_out_of_its_form(rows: list[tuple[str, str]], width: int) -> None:
    table = Table("", [Column("name", left=True), Column("a,figure", 1)], rows)
    for text in (to_terminal([table], width=width, colour=False), to_plain([table])):
        assert all(c == "\n" or c == "\t" or visible(c) == c for c in text)
    lines = to_terminal([table], width=width, colour=False).split("\n")
    assert all(cell_len(line) <= width for line in lines)
    assert to_plain([table]).count("\n") == len(rows)
    assert all(line.count("\t") == 1 for line in to_plain([table]).split("\n"))
    found = list(csv.reader(io.StringIO(to_csv(table), newline="")))
    assert found == [["name", "a,figure"], *([cell(c) for c in row] for row in rows)]
    assert to_markdown([table]).count("\n") == 1 + len(rows)
    assert len(Page(to_html(table)).found) == 7 + 3 * len(rows)


def test_tables_stand_side_by_side_only_where_both_have_room() -> None:
    room = 2 * full_width(SMALL) + 3
    for width, lines in ((room, 1), (room - 1, 2)):
        text = to_terminal([SMALL, SMALL], width=width, colour=False, in_pairs=True)
        assert sum("Two rows" in line for line in text.split("\n")) == lines
        assert text.count("Two rows") == 2 and text.count("7.0") == 2


def test_a_wide_terminal_shows_all_columns() -> None:
    lines = to_terminal([SMALL], width=40, colour=False, lines=["End."]).split("\n")
    assert lines == [
        "Two rows", "", "                      same", "method      speed-up   ids   MiB",
        "─────────────────────────────────", "none           1.00×   4/4  19.3",
        "a|b [bold]     2.10×   4/4   7.0", "", "A note.", "", "End.",
    ]  # fmt: skip


def test_a_narrow_terminal_loses_the_least_needed_columns_and_says_which() -> None:
    text = to_terminal([SMALL], width=24, colour=False)
    assert "MiB" not in text.split("Left out")[0] and "ids" not in text.split("Left out")[0]
    assert "Left out at this width:" in text and "MiB, same ids" in " ".join(text.split())
    assert all(len(line) <= 24 for line in text.split("\n"))
    assert fit(SMALL, 1)[0].columns == SMALL.columns[:2]


def test_html_cells_are_escaped_and_headings_have_scopes() -> None:
    text = to_html(Table(HOSTILE, [Column("<a>"), Column("b c")], [[HOSTILE, "2"]], "<i>"))
    assert "<script" not in text and "\x1b" not in text and "<i>" not in text
    assert '<th scope="col">&lt;a&gt;</th><th scope="col">b<br>c</th>' in text
    assert '<th scope="row">' in text and "<td>2</td>" in text


LIVE_ROW: dict[str, Any] = {
    "method": "trie", "num_draft": 32, "task": "overall", "questions": 4, "new_tokens": 40,
    "steps": 20, "drafted_tokens": 80, "accepted_tokens": 20, "mean_acceptance_length": 2.0,
    "draft_acceptance_rate": 0.25, "acceptance_histogram": {"0": 10, "1": 5, "6": 4, "12": 1},
    "nodes_per_step": 8.0, "undrafted_share": 0.5, "seconds_median": 0.1234,
    "seconds_quartiles": [0.1, 0.2], "spread": 0.031, "tokens_per_s": 200.0,
    "tokens_per_s_with_prefill": 123.45, "prefill_s_median": 0.05, "setup_s_median": None,
    "speedup": 1.5, "speedup_quartiles": [1.25, 1.75], "speedup_least_and_most": [1.0, 2.0],
    "speedup_over_hf": 0.5, "speedup_over_hf_quartiles": [1.25, 1.75],
    "speedup_over_hf_least_and_most": [1.0, 2.0], "same_ids": 4,
    "judged": 4, "exact_match": 0.5, "f1": 0.755, "rouge_l": 0.25,
}  # fmt: skip
REPLAY_ROW: dict[str, Any] = {
    "method": "trie", "num_draft": 16, "task": "overall", "questions": 2, "new_tokens": 90,
    "steps": 40, "mean_acceptance_length": 2.25, "draft_acceptance_rate": 0.1,
    "acceptance_histogram": {"0": 20, "3": 20}, "nodes_per_step": 20.0,
    "draft_us_median": 35.0, "draft_us_p99": 120.4, "undrafted_share": 0.2,
}  # fmt: skip
COMPARED = [k for k in LIVE_ROW if k.startswith("speedup_over_hf") or k == "rouge_l"]


def row(method: str, num_draft: int | None, json: dict[str, Any] = LIVE_ROW, **changes: Any) -> Row:
    """A row whose JSON is `json`, but for what is compared with others."""
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in json.items()}
    counts = values["acceptance_histogram"].items()
    values["acceptance_histogram"] = {int(k): v for k, v in reversed(counts)}
    values |= {"method": method, "num_draft": num_draft, **dict.fromkeys(COMPARED)}
    return Row(**values | changes)


RAN = Invocation(
    command="ngt bench",
    date="2026-01-02T03:04:05+00:00",
    versions={"ngt": "0.1.0", "torch": "2", "transformers": "5", "python": "3.11"},
)
STEP_US = {"draft": 10.0, "tree": 20.0, "forward": 3000.0, "verify": 30.0, "cache": 4.0}
SHARE = {"prefill": 0.5, "draft": 0.1, "tree": 0.1, "forward": 0.2, "verify": 0.1, "cache": 0.0}


def split_row(method: str) -> SplitRow:
    return SplitRow(
        method=method, num_draft=32, steps=20, prefill_ms=70.0, step_us=STEP_US, share=SHARE
    )


def live_result(*methods: str) -> LiveResult:
    plain = row("none", None, speedup=1.0, acceptance_histogram={0: 20})
    return LiveResult(
        model="builtin",
        machine=Machine(device="cpu", device_name="A CPU", dtype="float32", threads=1, cores=2),
        questions=4, rounds=5, max_tokens=40, fresh=False, interrupted=False,
        notes=[], rows=[plain, *(row(m, 32) for m in methods)],
        split=[split_row(m) for m in methods], prompts=[],
        refused=[Refusal("rest", "no datastore")], invocation=RAN,
    )  # fmt: skip


def replay_result(*methods: str) -> ReplayResult:
    rows = [
        row(m, k, REPLAY_ROW, task=task)
        for task in ("overall", "qa", "rag")
        for m in methods
        for k in (16, 32)
    ]
    return ReplayResult(
        source="traces", model="vicuna", questions=4, seconds=1.25, fresh=True,
        rows=rows, refused=[Refusal("recycling", "scores")],
    )  # fmt: skip


LIVE_JSON = {
    "kind": "live", "model": "builtin", "device": "cpu", "device_name": "A CPU",
    "dtype": "float32", "threads": 1, "cores": 2, "questions": 4, "rounds": 5, "max_tokens": 40,
    "fresh": False, "interrupted": False, "notes": [],
    "rows": [LIVE_ROW],
    "split": [{"method": "trie", "num_draft": 32, "steps": 20, "prefill_ms": 70.0,
               "step_us": STEP_US, "share": SHARE}],
    "prompts": [{"id": "s", "task": "qa", "prompt_tokens": 9, "results": {"trie at 32": {
        "rounds": 3, "seconds_median": 2.0, "seconds_quartiles": [1.5, 3.5], "new_tokens": 3}}}],
    "refused": [{"method": "rest", "reason": "no datastore"}],
    "skipped": [{"name": "a.bin", "reason": "binary"}], "command": "ngt bench",
    "date": "2026-01-02T03:04:05+00:00",
    "versions": {"ngt": "0.1.0", "torch": "2", "transformers": "5", "python": "3.11"},
}  # fmt: skip
REPLAY_JSON = {
    "kind": "replay", "source": "traces", "model": "vicuna", "questions": 4, "fresh": True,
    "seconds": 1.25,
    "rows": [REPLAY_ROW],
    "refused": [{"method": "recycling", "reason": "scores"}],
}  # fmt: skip


NO_INVOCATION = {"command": "", "date": "", "versions": {}}


def test_json_has_its_keys_in_their_order_to_the_byte() -> None:
    compared = {k: LIVE_ROW[k] for k in COMPARED}
    whole = row("trie", 32, **compared)
    times = PromptTimes(rounds=3, seconds_median=2.0, seconds_quartiles=(1.5, 3.5), new_tokens=3)
    prompt = PromptRow(id="s", task="qa", prompt_tokens=9, results={"trie at 32": times})
    live = replace(
        live_result("trie"), rows=[whole], prompts=[prompt],
        skipped=(Skipped("a.bin", "binary", ".bin"),),
    )  # fmt: skip
    assert dump_json(live) == dump_json(LIVE_JSON)
    replayed = replace(replay_result("trie"), rows=replay_result("trie").rows[:1])
    assert dump_json(replayed) == dump_json({**REPLAY_JSON, **NO_INVOCATION})


def test_what_was_not_compared_or_judged_is_not_in_json() -> None:
    unjudged = row("trie", 32, judged=None, exact_match=None, f1=None)
    made = to_json(replace(live_result(), rows=[unjudged, row("trie", 32, exact_match=None)]))
    found, judged = made["rows"]
    assert not set(found) & {"speedup_over_hf", "judged", "exact_match", "f1", "rouge_l"}
    assert "rouge_l" not in judged and judged["exact_match"] is None


def test_a_live_result_becomes_these_tables() -> None:
    assert to_plain(tables(live_result("trie"))) == (
        "# 4 prompts, live, at most 32 draft nodes a step\n"
        "method\tspeed-up\tquartiles\taccept. length\tsame ids\ttokens/s\tEM\tF1\tseconds\tspread"
        "\taccepted\tundrafted\n"
        "none\t1.00×\t1.25–1.75\t2.00\t4/4\t123.5\t50.0\t75.5\t0.123\t3%\t25.0%\t50%\n"
        "trie\t1.50×\t1.25–1.75\t2.00\t4/4\t123.5\t50.0\t75.5\t0.123\t3%\t25.0%\t50%\n\n"
        "# Steps by accepted drafts\n"
        "method\t0\t1\t2\t3\t4\t5–6\t7–9\t10+\n"
        "trie\t50%\t25%\t0%\t0%\t0%\t20%\t0%\t5%\n\n"
        "# Where the time goes\n"
        "method\tprefill\tdraft\ttree\tforward\tverify\tcache\n"
        "trie\t70.0 ms 50%\t10 10%\t20 10%\t3000 20%\t30 10%\t4 0%\n\n"
        "# Refused\n"
        "method\treason\n"
        "rest\tno datastore"
    )


def test_a_replay_becomes_these_tables() -> None:
    assert to_plain(tables(replay_result("trie"))).split("\n\n")[:2] == [
        "# 4 prompts, replayed\n"
        "method\tdrafts\taccept. length\taccepted\tnodes/step\tdraft µs\t99th\tundrafted\tsteps"
        "\ttokens\n"
        "trie\t16\t2.25\t10.0%\t20.0\t35\t120\t20%\t40\t90\n"
        "trie\t32\t2.25\t10.0%\t20.0\t35\t120\t20%\t40\t90",
        "# Mean acceptance length by task\n"
        "method\tdrafts\tqa\trag\toverall\n"
        "trie\t16\t2.25\t2.25\t2.25\n"
        "trie\t32\t2.25\t2.25\t2.25",
    ]


QUALITY_ROW = {
    "weights": "bfloat16", "tokens": 2067, "perplexity": 1234.5678, "perplexity_change": 0.0125,
    "kl_divergence": 0.0015, "equal_tokens": 0.985, "judged": 10, "exact_match": 0.5, "f1": 0.75,
    "rouge_l": 0.8,
}  # fmt: skip


def quality_result(judged: bool = True) -> QualityResult:
    base = dict.fromkeys(("perplexity_change", "kl_divergence", "equal_tokens"))
    unjudged = dict.fromkeys(("judged", "exact_match", "f1", "rouge_l"))
    own: dict[str, Any] = QUALITY_ROW if judged else {**QUALITY_ROW, **unjudged}
    return QualityResult(
        model="builtin",
        machine=Machine(device="cpu", device_name="A CPU", dtype="bfloat16", threads=1, cores=2),
        scored="texts" if judged else "answers", texts=4, window=512, stride=256, notes=[],
        rows=[QualityRow(**{**own, **base, "weights": "float32"}), QualityRow(**own)],
    )  # fmt: skip


def test_quality_becomes_this_table_and_these_rows() -> None:
    table = to_plain(tables(quality_result()))
    assert table == (
        "# Quality over 2067 tokens of 4 texts\n"
        "weights\tperplexity\tagainst float32\tKL\tequal tokens\tanswers\tEM\tF1\tROUGE-L\n"
        "float32\t1,234.568\t–\t–\t–\t10\t50.0\t75.0\t80.0\n"
        "bfloat16\t1,234.568\t+1.25%\t1.50e-03\t98.50%\t10\t50.0\t75.0\t80.0"
    )
    assert to_json(quality_result())["rows"][1] == QUALITY_ROW
    unjudged = quality_result(judged=False)
    assert "judged" not in to_json(unjudged)["rows"][1]
    assert to_plain(tables(unjudged)).splitlines()[1].endswith("equal tokens")
    assert " · ".join(facts(unjudged)) == "builtin · bfloat16 on cpu (A CPU) · 1 of 2 cores"
    note = " ".join(tables(quality_result())[0].note.split())
    assert note.endswith("Windows of 512 tokens, one every 256.")


def test_a_table_of_one_number_of_drafts_names_it_and_one_of_several_has_a_column() -> None:
    several = replay_result("trie")
    for k, title in ((16, "at most 16 draft nodes a step"), (1, "at most 1 draft node a step")):
        rows = [replace(r, num_draft=k) for r in several.rows[::2]]
        rows.append(replace(rows[0], method="none", num_draft=0))
        first = tables(replace(several, rows=rows))[0]
        assert first.title.endswith(title) and "drafts" not in [c.title for c in first.columns]
    first = tables(several)[0]
    assert "at most" not in first.title and "drafts" in [c.title for c in first.columns]


def test_facts_say_what_was_run_on_what() -> None:
    assert " · ".join(facts(live_result())) == (
        "builtin · float32 on cpu (A CPU) · 1 of 2 cores · 5 rounds · at most 40 tokens"
        " · ngt 0.1.0 · torch 2 · transformers 5 · 2026-01-02T03:04:05+00:00"
    )
    assert facts(replay_result()) == [
        "vicuna", "from traces", "1.2 s", "forgetting at each prompt"
    ]  # fmt: skip


def _page(result: Any) -> str:
    return forms_of(result).page()


def test_the_page_is_whole_and_loads_and_runs_nothing() -> None:
    changes: dict[str, Any] = {
        "invocation": replace(RAN, command=HOSTILE), "model": HOSTILE,
        "refused": [Refusal(HOSTILE, HOSTILE)],
    }  # fmt: skip
    live = replace(live_result("trie", HOSTILE), notes=[HOSTILE], interrupted=True, **changes)
    quality = replace(quality_result(), model=HOSTILE, notes=[HOSTILE])
    for result in (live, quality, replace(replay_result("trie", HOSTILE), **changes)):
        text = _page(result)
        tags = Page(text).found
        assert {t for t, _ in tags} & {"script", "link", "img", "iframe", "object"} == set()
        assert not any(name.startswith("on") for _, a in tags for name in a)
        assert "\x1b" not in text and "http" not in text.replace("http-equiv", "")
        assert all(u.startswith("#") for u in re.findall(r"url\((.*?)\)", text))
        assert "prefers-color-scheme: dark" in text and "@media print" in text


def test_what_is_compared_has_a_bar_to_scale_behind_its_number() -> None:
    text = _page(live_result("trie", "suffix"))
    bars = re.findall(r'<td class="bar" style="--bar-share:([\d.]+)">([^<]*)', text)
    speedups = [(float(share), shown) for share, shown in bars if shown.endswith("×")]
    assert speedups == [(66.7, "1.00×"), (100.0, "1.50×"), (100.0, "1.50×")]
    assert ("20.0", "3000 20%") in bars and ("25.0", "25%") in bars
    assert text.count('scope="col"') and text.count("<caption>") == 4
