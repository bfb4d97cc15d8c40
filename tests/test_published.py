"""Published recordings and prompts in our own form."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from ngtcli.errors import InputError, UsageError
from ngtcli.measure.traces import read_traces
from ngtcli.model_files.checkpoint import BUILTIN_PATH
from tests.tools.spec_bench import convert, template_for


def write_spec_bench(folder: Path, turns: list[str], counts: list[int], **change: Any) -> Path:
    folder.mkdir()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(BUILTIN_PATH)
    tokenizer.save_pretrained(folder / "tokenizer")
    question = {"question_id": 7, "category": "writing", "turns": ["Say it.", "Again."]}
    choices = [{"turns": turns, "new_tokens": counts}]
    answer = {"question_id": 7, "model_id": "some-vicuna", "choices": choices, **change}
    (folder / "question.jsonl").write_text(json.dumps(question) + "\n")
    (folder / "answers.jsonl").write_text(json.dumps(answer) + "\n")
    return folder


def test_spec_bench_files_become_traces_with_history_in_later_turns(tmp_path: Path) -> None:
    folder = write_spec_bench(tmp_path / "s", ["It is so.", "It is so."], [0, 0])
    assert convert(folder, tmp_path / "all", every_turn=True) == 2  # lengths of 0 cannot be right
    found = read_traces(tmp_path / "all")
    first, second = found.traces
    assert (first.id, second.id, first.task, first.room) == ("7", "7/2", "writing", 1024)
    assert first.output_ids == second.output_ids
    assert second.prompt_ids[: len(first.prompt_ids) - 2] == first.prompt_ids[:-2]
    assert len(second.prompt_ids) > len(first.prompt_ids) + len(first.output_ids)
    convert(folder, tmp_path / "first")
    assert len(read_traces(tmp_path / "first").traces) == 1
    assert (tmp_path / "first" / "tokenizer").is_dir()


def test_an_unknown_model_needs_a_template() -> None:
    assert template_for("", "Vicuna-13B") == template_for("vicuna", "")
    for name, hint in (("", "llama-2"), ("vicunia", "Did you mean vicuna?")):
        with pytest.raises(UsageError) as caught:
            template_for(name, "mystery")
        assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"question_id": [7]}, "question_id"), ({"question_id": 8}, "no such question"),
        ({"choices": []}, "or no answer"),
        ({"choices": [{"turns": ["a"] * 3, "new_tokens": [1] * 3}]}, "more turns are answered"),
        ({"choices": [{"turns": [1], "new_tokens": [1]}]}, "turns[0] is 1"),
    ],
)  # fmt: skip
def test_a_broken_answer_of_spec_bench_is_named(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = write_spec_bench(tmp_path / "s", ["It is so."], [0], **change)
    with pytest.raises(InputError) as caught:
        convert(folder, tmp_path / "r")
    assert words in str(caught.value)
