"""The paths for GPUs, on devices that pretend (tests/tools/pretended.py)."""

import json
from pathlib import Path

import pytest

from tests.support.helpers import HARBOUR, ngt
from tests.support.warm import run
from tests.tools import pretended

pytestmark = pytest.mark.skipif(bool(pretended.why_not()), reason=pretended.why_not())
INSTALL = "from tests.tools import pretended\npretended.install()\n"
MAIN = INSTALL + "from ngtcli.__main__ import main\nmain()"
CHECK = "from tests.support import gpu_checks\ngpu_checks.check({!r}, {!r})"
# Of all commands: what they are compared in, and no measuring of costs.
USUAL = ["--max-tokens", "24", "--dtype", "float32", "--set", "calibrate=no"]


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels, built once for all tests."""
    return pretended.library()


@pytest.mark.search
@pytest.mark.parametrize(
    "name",
    [
        "tokens_are_the_cpus cuda",
        "tokens_are_the_cpus mps",
        "answers_by_a_grammar_are_the_cpus cuda",
        "answers_by_a_grammar_are_the_cpus mps",
        "exact_passes_have_the_tokens_of_plain_ones cuda",
        "exact_passes_have_the_tokens_of_plain_ones mps",
        "texts_together_have_the_cpus_tokens cuda",
        "texts_together_have_the_cpus_tokens mps",
        "nearly_all_passes_of_growing_prompts_are_replayed cuda",
        "a_step_has_one_copy_each_way cuda",
        "a_step_has_one_copy_each_way mps",
        "what_is_read_apart_is_what_one_mask_gives cuda",
        "long_prompts_are_read_apart cuda",
        "what_waits_for_the_device_begins_no_capture cuda",
        "scores_are_compared_as_on_the_cpu mps",
        "layers_take_few_kernels cuda",
        "layers_take_few_kernels mps",
        "models_with_a_state_give_the_cpus_tokens cuda",
        "models_with_a_state_give_the_cpus_tokens mps",
        "layers_on_two_devices_give_the_cpus_tokens cuda",
    ],
)
def test_check(name: str) -> None:
    done = run(code=CHECK.format(*name.split()))
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.search
@pytest.mark.parametrize(
    ("device", "options"),
    [
        ("cuda", "--method auto"),
        ("mps", "--method recycling --set capture=no"),
        ("mps", "--temperature 0.8 --set top_p=0.9"),
        ("cuda", "--set repetition_penalty=1.2 --temperature 0.7 --set top_k=20"),
    ],
)
def test_a_command_gives_the_text_of_the_cpu(device: str, options: str) -> None:
    command = ["summarize", HARBOUR, *USUAL, *options.split()]
    truth = ngt(*command)
    done = run(*command, "--device", device, code=MAIN)
    assert done.returncode == truth.returncode == 0, done.stderr.decode()
    assert done.stdout == truth.stdout


def test_a_batch_gives_the_texts_of_the_cpu(tmp_path: Path) -> None:
    lines = [{"context": f"The boats of {name} came in late. " * 9} for name in ("Ava", "Bo", "Cy")]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = []
    for more in (["--device", "cuda"], []):
        command = ["batch", str(tmp_path / "in.jsonl"), *USUAL]
        command += ["--output", str(tmp_path / f"out{len(more)}.jsonl"), *more]
        done = run(*command, code=MAIN) if more else ngt(*command)
        assert done.returncode == 0, done.stderr.decode()
        written = (tmp_path / f"out{len(more)}.jsonl").read_text().splitlines()
        found.append(sorted(json.loads(line)["text"] for line in written))
    assert found[0] == found[1]
