"""Where reports go: to the reporter of the context, and to no other."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from ngtcli.system import reporting
from ngtcli.system.reporting import reporting_to
from tests.support.recording_reporter import RecordingReporter


def test_reports_go_to_the_innermost_reporter() -> None:
    outer, inner = RecordingReporter(), RecordingReporter()
    with reporting_to(outer):
        reporting.warn("before")
        with reporting_to(inner):
            reporting.warn("within")
            reporting.status("working")
        reporting.warn("after")
    assert outer.warnings == ["before", "after"]
    assert outer.statuses == []
    assert inner.warnings == ["within"]
    assert inner.statuses == ["working"]


def test_without_a_reporter_nothing_happens() -> None:
    reporting.status("working")
    reporting.warn("nobody hears this")
    reporting.warn_once("nobody hears this")
    reporting.current().warn("nobody hears this")


def test_what_is_said_once_is_said_again_to_another_reporter() -> None:
    first, second = RecordingReporter(), RecordingReporter()
    for reporter in (first, second):
        with reporting_to(reporter):
            reporting.warn_once("slow")
            reporting.warn_once("slow")
    assert first.warnings == ["slow"]
    assert second.warnings == ["slow"]


def test_a_new_thread_reports_to_nobody_unless_it_gets_the_context() -> None:
    reported = RecordingReporter()
    with reporting_to(reported):
        context = copy_context()
        reporter = reporting.current()
        threads = [
            threading.Thread(target=reporting.warn, args=("without the context",)),
            threading.Thread(target=context.run, args=(reporting.warn, "with the context")),
            threading.Thread(target=reporter.warn, args=("by the reporter",)),
        ]
        for thread in threads:
            thread.start()
            thread.join()
    assert reported.warnings == ["with the context", "by the reporter"]


def test_threads_that_work_at_once_report_each_to_their_own() -> None:
    """As the threads of a server do, which prepare the requests of several users."""
    all_are_inside = threading.Barrier(4)

    def work(user: str) -> RecordingReporter:
        reported = RecordingReporter()
        with reporting_to(reported):
            all_are_inside.wait(timeout=60)
            reporting.warn(f"of {user}")
            reporting.warn_once("to everybody")
            all_are_inside.wait(timeout=60)
        return reported

    users = ["ann", "bob", "cem", "dora"]
    with ThreadPoolExecutor(len(users)) as pool:
        for user, reported in zip(users, pool.map(work, users), strict=True):
            assert reported.warnings == [f"of {user}", "to everybody"]


def test_what_outlives_its_context_reports_to_who_made_it() -> None:
    """As a model that is loaded by one user does, when it answers another."""
    maker, other = RecordingReporter(), RecordingReporter()
    with reporting_to(maker):
        held = reporting.current()
    with reporting_to(other):
        held.warn("memory does not suffice")
    assert maker.warnings == ["memory does not suffice"]
    assert other.warnings == []
