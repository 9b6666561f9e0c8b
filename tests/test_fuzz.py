"""A short run of `make fuzz`: every area has cases and no fault, and a fault does not pass unseen."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlhf_core.errors import DataError
from tests.fuzz import __main__ as fuzz
from tests.fuzz.damage import Area


@pytest.mark.platform
@pytest.mark.parametrize("area", fuzz.AREAS)
def test_an_area_has_no_fault(area: str) -> None:
    found = fuzz.run(area, seconds=3.0, seed=0)
    assert found.faults == 0
    assert found.cases > found.refused, "every case was refused: what is refused may be the area's own file"


@contextmanager
def _planted(folder: Path) -> Iterator[Area]:
    def case(rng: random.Random) -> None:
        kind = rng.choice([ValueError, DataError, None])
        if kind is not None:
            raise kind("planted")

    yield case


def test_a_fault_is_counted_and_its_case_can_be_run_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fuzz, "AREAS", {"planted": _planted})
    assert fuzz.main(["--area", "planted", "--seconds", "0.2"]) == 1
    told = capsys.readouterr().out
    number = told.partition("planted: case ")[2].partition(" ")[0]
    assert "ValueError: planted" in told
    assert fuzz.main(["--area", "planted", "--case", number]) == 1
    assert "planted: 1 cases, 0 refused in words, 1 faults" in capsys.readouterr().out
