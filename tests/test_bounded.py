"""Code of others ends where its time or memory does, and the process is as it was before."""

import resource
import signal

import pytest

from ngtcli.system.sandbox import BoundError, bounded


def endless() -> None:
    while True:
        pass


def state() -> object:
    return (
        resource.getrlimit(resource.RLIMIT_AS),
        signal.getitimer(signal.ITIMER_VIRTUAL),
        signal.getsignal(signal.SIGVTALRM),
    )


def test_bounds_hold_and_are_taken_off_again() -> None:
    before = state()
    with pytest.raises(BoundError, match="more than 0.1 s"):
        bounded(endless, seconds=0.1, megabytes=100)
    with pytest.raises(BoundError, match="more than 100 MB"):
        bounded(lambda: bytearray(10**12), seconds=5, megabytes=100)
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 // 0, seconds=5, megabytes=100)
    assert bounded(lambda: 7, seconds=5, megabytes=100) == 7
    assert state() == before


def test_a_bound_that_the_process_has_already_is_not_raised() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    lower = 40 * 10**12
    resource.setrlimit(resource.RLIMIT_AS, (lower, before[1]))
    try:
        found = bounded(
            lambda: resource.getrlimit(resource.RLIMIT_AS)[0], seconds=5, megabytes=10**8
        )
        assert found == lower
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
