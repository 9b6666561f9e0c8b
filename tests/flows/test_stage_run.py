"""Failures that are tried again, and messages of failures."""

from __future__ import annotations

import pytest

from flows.stage_run import explain_failure

DVC = "ERROR: failed to reproduce 'policy-a-0': failed to run: python -m tasks.policy, exited with {}\n"


@pytest.mark.parametrize(
    ("tail", "status", "retry"),
    [
        ("error: file x, row 3: empty\n" + DVC.format(2), 2, False),
        ("ValueError: boom\n" + DVC.format(1), 1, False),
        ("NumericsError: loss is nan\n" + DVC.format(2), 2, False),
        ("error: judge timed out\n" + DVC.format(2), 2, False),
        (DVC.format(75), 75, True),
        (DVC.format(-9), 137, True),
        ("requests.exceptions.ConnectionError: refused\n" + DVC.format(1), 1, True),
        ("RuntimeError: CUDA error: device-side failure: device lost\n" + DVC.format(1), 1, True),
        ("ERROR: Unable to acquire lock. Most likely another DVC process is running\n", 255, True),
        ("", -15, True),
    ],
)
def test_only_what_may_pass_is_tried_again(tail: str, status: int, retry: bool) -> None:
    assert explain_failure("policy-a-0", status, tail).retry is retry


def test_message_is_the_stages_own() -> None:
    failure = explain_failure("policy-a-0", 2, "step 3\nerror: file x.jsonl, row 3: empty\n" + DVC.format(2))
    assert str(failure) == "stage policy-a-0 failed with exit code 2: file x.jsonl, row 3: empty"


@pytest.mark.parametrize(
    "line",
    [
        "OSError: [Errno 28] No space left on device: 'results/x'",
        'Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })',
        "sqlite3.OperationalError: database or disk is full",
    ],
)
def test_a_full_disk_says_what_to_do_and_is_not_tried_again(line: str) -> None:
    failure = explain_failure("policy-a-0", 1, f"step 3\n{line}\n" + DVC.format(1))
    assert not failure.retry
    assert str(failure).startswith(
        f"stage policy-a-0 failed: the disk is full: {line}. Free some space and run the same"
    )
