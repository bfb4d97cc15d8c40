"""Tables for pipes, CSV and terminals: no text breaks out of its form, and one golden of each."""

import csv
import io
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from ngtcli.bench.grid import Refusal
from ngtcli.bench.results import Invocation, LiveResult, Machine
from ngtcli.bench.summary import Row
from ngtcli.render.results import bench_table, forms_of
from ngtcli.render.tables import Column, Table, cell, fit, to_csv, to_plain, to_terminal
from ngtcli.render.terminal import visible
from ngtcli.system.json_form import to_json

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


@settings(max_examples=40)
@given(st.lists(st.tuples(st.text(), st.text(max_size=9)), max_size=4), st.integers(20, 90))
def test_no_text_breaks_a_table_out_of_its_form(rows: list[tuple[str, str]], width: int) -> None:
    table = Table("", [Column("name", left=True), Column("a,figure", 1)], rows)
    for text in (to_terminal([table], width=width, color=False), to_plain([table])):
        assert all(c == "\n" or c == "\t" or visible(c) == c for c in text)
    lines = to_terminal([table], width=width, color=False).split("\n")
    assert all(cell_len(line) <= width for line in lines)
    assert to_plain([table]).count("\n") == len(rows)
    assert all(line.count("\t") == 1 for line in to_plain([table]).split("\n"))
    found = list(csv.reader(io.StringIO(to_csv(table), newline="")))
    assert found == [["name", "a,figure"], *([cell(c) for c in row] for row in rows)]


def test_a_wide_terminal_shows_all_columns() -> None:
    lines = to_terminal([SMALL], width=40, color=False, lines=["End."]).split("\n")
    assert lines == [
        "Two rows",
        "",
        "                      same",
        "method      speed-up   ids   MiB",
        "─────────────────────────────────",
        "none           1.00×   4/4  19.3",
        "a|b [bold]     2.10×   4/4   7.0",
        "",
        "A note.",
        "",
        "End.",
    ]


def test_a_narrow_terminal_loses_the_least_needed_columns_and_says_which() -> None:
    text = to_terminal([SMALL], width=24, color=False)
    assert "MiB" not in text.split("Left out")[0]
    assert "ids" not in text.split("Left out")[0]
    assert "Left out at this width:" in text
    assert "MiB, same ids" in " ".join(text.split())
    assert all(len(line) <= 24 for line in text.split("\n"))
    assert fit(SMALL, 1)[0].columns == SMALL.columns[:2]


def row(method: str, num_draft: int | None, **changes: Any) -> Row:
    values: dict[str, Any] = {
        "method": method,
        "num_draft": num_draft,
        "questions": 4,
        "new_tokens": 40,
        "steps": 20,
        "mean_acceptance_length": 2.0,
        "draft_acceptance_rate": 0.25,
        "undrafted_share": 0.5,
        "seconds_median": 0.1234,
        "spread": 0.031,
        "tokens_per_s_with_prefill": 123.45,
        "speedup": 1.5,
        "speedup_quartiles": (1.25, 1.75),
        "same_ids": 4,
        "share": {
            "prefill": 0.5,
            "draft": 0.1,
            "tree": 0.1,
            "forward": 0.2,
            "verify": 0.1,
            "cache": 0.0,
        },
    }
    return Row(**values | changes)


def bench_result(*rows: Row) -> LiveResult:
    return LiveResult(
        model="builtin",
        machine=Machine(device="cpu", device_name="A CPU", dtype="float32", threads=1, cores=2),
        questions=4,
        rounds=5,
        max_tokens=40,
        fresh=False,
        interrupted=False,
        notes=[],
        rows=rows,
        refused=[Refusal("rest", "no datastore")],
        invocation=Invocation(
            date="2026-01-02", versions=dict.fromkeys(("ngt", "torch", "transformers"), "1")
        ),
    )


def test_bench_prints_one_table_of_all_methods() -> None:
    result = bench_result(row("none", None, speedup=1.0, share=None), row("trie", 32))
    assert forms_of(result).plain() == (
        "# 4 prompts, at most 32 draft nodes per step\n"
        "method\tspeed-up\tquartiles\taccept. length\tsame ids\ttokens/s\tseconds\tspread"
        "\taccepted\tundrafted\tprefill\tdraft\ttree\tforward\tverify\tcache\n"
        "none\t1.00×\t1.25–1.75\t2.00\t4/4\t123.5\t0.123\t3%\t25.0%\t50%\t–\t–\t–\t–\t–\t–\n"
        "trie\t1.50×\t1.25–1.75\t2.00\t4/4\t123.5\t0.123\t3%\t25.0%\t50%"
        "\t50%\t10%\t10%\t20%\t10%\t0%\n\n"
        "# builtin · float32 on cpu (A CPU) · 1 of 2 cores · 5 rounds · at most 40 tokens"
        " · ngt 1 · torch 1 · transformers 1 · 2026-01-02"
    )


def test_several_numbers_of_drafts_have_a_column_and_one_stands_in_the_title() -> None:
    one = bench_table(bench_result(row("none", None), row("trie", 32)))
    assert "at most 32" in one.title
    assert [c.title for c in one.columns][:2] == [
        "method",
        "speed-up",
    ]
    several = bench_table(bench_result(row("none", None), row("trie", 16), row("trie", 32)))
    assert "at most" not in several.title
    assert several.columns[1].title == "drafts"
    assert [line[1] for line in several.rows] == ["–", "16", "32"]


def test_a_narrow_terminal_keeps_speed_length_and_where_most_time_goes() -> None:
    text = forms_of(bench_result(row("none", None), row("trie", 32))).terminal(80, False)
    assert all(cell_len(line) <= 80 for line in text.split("\n"))
    shown = text.split("Left out at this width")[0].split()
    assert {"speed-up", "length", "tokens/s", "draft", "forward"} <= set(shown)


def test_what_was_not_compared_is_not_in_json() -> None:
    (plain,) = to_json(bench_result(row("none", None)))["rows"]
    assert not [key for key in plain if key.startswith("speedup_over_hf")]
    (compared,) = to_json(bench_result(row("none", None, speedup_over_hf=1.2)))["rows"]
    assert compared["speedup_over_hf"] == 1.2
