"""How a command is made of a function: what its parameters get, and which options it has."""

import json
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer

from ngtcli.cli.command import Command, Group, command, group
from ngtcli.cli.parameters import Option
from ngtcli.cli.setting_flags import SettingFlags
from ngtcli.cli.show import facts
from ngtcli.errors import UsageError

LIMIT = typer.Option("--limit", min=1, help="At most so many.")


@dataclass(frozen=True)
class PageFlags:
    width: Annotated[int, typer.Option("--width", help="Columns.")] = 80
    colours: Annotated[list[str] | None, typer.Option("--colour", help="Of lines.")] = None


def run(command: Command | Group, *arguments: str) -> Any:
    """Read the arguments of a command, and call its function; return the context."""
    context = command.make_context("ngt", [*arguments])
    with context:
        command.invoke(context)
    return context


def calls(calls_of_command: list[dict[str, Any]]) -> Command:
    """Return a command that puts into `made` what its function gets."""

    @command("draw", settings=("n", "seed", "exact"))
    def draw(
        picked: SettingFlags,
        page: PageFlags,
        names: Annotated[list[str], typer.Argument(help="Files.")],
        where: typer.Context,
        limit: Annotated[int | None, LIMIT] = None,
    ) -> None:
        """Draw files."""
        calls_of_command.append(locals().copy())

    return draw


def test_parameters_are_recognized_by_type() -> None:
    calls_of_command: list[dict[str, Any]] = []
    run(
        calls(calls_of_command),
        "a",
        "b",
        "--seed",
        "7",
        "--set",
        "n=9",
        "--no-exact",
        "--colour",
        "red",
    )
    (got,) = calls_of_command
    assert got["picked"] == {"n": 9, "seed": 7, "exact": "off"}
    assert got["page"] == PageFlags(80, ["red"])
    assert got["names"] == ["a", "b"]
    assert got["limit"] is None
    assert got["where"].info_name == "ngt"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--limit", "0"], "or equal to 1"),
        (["x", "--limit", "many"], "'many' is not a whole number"),
        ([], "names"),
        (["x", "--nonsense"], "No such option"),
    ],
)
def test_a_wrong_value_is_an_error_of_typer(arguments: list[str], message: str) -> None:
    with pytest.raises(typer.TyperException) as caught:
        calls([]).make_context("ngt", arguments)
    assert message in caught.value.format_message()


def test_the_callback_of_an_option_gets_its_value() -> None:
    got: list[Any] = []

    def keep(value: Any) -> Any:
        got.append(value)
        return value

    @command("name")
    def name(
        word: Annotated[str, typer.Option("--word", callback=keep)] = "",
        count: Annotated[int, typer.Option("--count", callback=keep)] = 0,
    ) -> None:
        """Name it."""

    run(name, "--word", "tide", "--count", "7")
    assert got == ["tide", 7]


def test_the_hint_for_a_setting_without_a_flag_names_set() -> None:
    with pytest.raises(UsageError) as caught:
        calls([]).make_context("ngt", ["x", "--n", "9"])
    assert caught.value.hint == "Give --set n=VALUE."


def test_a_setting_of_other_commands_is_no_hint() -> None:
    with pytest.raises(typer.TyperException, match="No such option: --lp"):
        calls([]).make_context("ngt", ["x", "--lp", "9"])


def test_two_parameters_of_one_name_are_refused() -> None:
    with pytest.raises(TypeError, match="seed"):

        @command("twice", settings=("seed",))
        def twice(seed: Annotated[int, typer.Option("--seeds")] = 0) -> None:
            """Do it."""


def test_a_report_is_shown_to_people_or_printed_as_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @command("size", view=facts)
    def size(name: Annotated[str, typer.Argument()]) -> PageFlags:
        """Show a size."""
        return PageFlags(len(name))

    assert size.report is PageFlags
    run(size, "abc")
    assert "width\t3" in capsys.readouterr().out
    run(size, "abc", "--json")
    assert json.loads(capsys.readouterr().out) == {"width": 3, "colours": None}


def test_a_group_with_a_function_calls_it_and_then_the_command_in_it() -> None:
    order: list[str] = []

    @group("serve", settings=("seed",))
    def serve(flags: SettingFlags, context: typer.Context) -> None:
        """Serve."""
        order.append(f"{context.invoked_subcommand} {dict(flags)}")

    @serve.command("stop")
    def stop(name: Annotated[str, typer.Option("--name")] = "") -> None:
        """Stop."""
        order.append(f"stop {name}")

    run(serve, "--seed", "3")
    run(serve, "stop", "--name", "x")
    assert order == ["None {'seed': 3}", "stop {}", "stop x"]


def test_every_command_has_the_options_of_all() -> None:
    flags = {flag for p in calls([]).params for flag in p.opts if isinstance(p, Option)}
    assert {"--quiet", "-q", "--debug", "-h", "--seed", "--set", "--width"} <= flags
    assert "--n" not in flags
    assert "--json" not in flags
