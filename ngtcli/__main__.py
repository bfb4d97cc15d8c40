"""`ngt` as a process, also `python -m ngtcli`: handlers first, then the command, then the end."""

from ngtcli.system import process

TYPE_CHECKING = False  # see process
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> "NoReturn":
    """Run the command line and leave with its exit code."""
    process.guard()
    with process.without_collection():
        from ngtcli.cli.app import run  # here: what it loads takes time

    process.leave(run())


if __name__ == "__main__":
    main()
