"""Requirements that a machine lacks, and the completeness of the pinned set."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tasks.commands import doctor

ROOT = Path(__file__).resolve().parents[2]


def requirements(name: str, extras: frozenset[str], seen: set[str]) -> set[str]:
    """Every installed distribution that the project needs, directly or not, by normalised name."""
    for text in metadata.requires(name) or []:
        needed = Requirement(text)
        contexts = [{"extra": extra} for extra in (extras or {""})]
        if needed.marker and not any(needed.marker.evaluate(context) for context in contexts):
            continue
        key = canonicalize_name(needed.name)
        if key in seen:
            continue
        try:
            metadata.version(needed.name)
        except metadata.PackageNotFoundError:
            continue
        seen.add(key)
        requirements(needed.name, frozenset(needed.extras), seen)
    return seen


def project_requirements() -> set[str]:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    seen: set[str] = set()
    for text in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        needed = Requirement(text)
        if needed.marker and not needed.marker.evaluate():
            continue
        seen.add(canonicalize_name(needed.name))
        requirements(needed.name, frozenset(needed.extras), seen)
    return seen


def pins() -> dict[str, str]:
    return {canonicalize_name(name): version for name, version in doctor.pinned(ROOT / "constraints.txt").items()}


def test_every_needed_distribution_is_pinned_as_installed() -> None:
    needed = project_requirements()
    assert len(needed) > 100
    basics = {"pip", "setuptools", "wheel"}
    accelerators = {name for name in needed if name.startswith(("nvidia-", "cuda-", "triton"))}
    missing = sorted(needed - set(pins()) - basics - accelerators)
    assert missing == [], f"not in constraints.txt: {missing}"


def test_direct_requirements_admit_the_pins() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        needed = Requirement(text)
        assert needed.specifier.contains(pins()[canonicalize_name(needed.name)]), text


def test_other_version_than_pinned_is_named(tmp_path: Path) -> None:
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("pytest==1.2.3\n")
    finding = doctor.check_packages(constraints)
    assert finding.state == doctor.NOTE
    assert f"pytest {metadata.version('pytest')} instead of 1.2.3" in finding.found
    assert "make install" in finding.remedy


def test_outside_a_repository_doctor_reports_something_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor.report(tmp_path) >= 1
    assert "requirement(s) missing" in capsys.readouterr().out
    assert doctor.report(ROOT) == 0


def test_a_project_outside_a_clone_lacks_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dvc.yaml").touch()
    (tmp_path / ".dvc").mkdir()
    assert doctor.report(tmp_path) == 0
    shown = capsys.readouterr().out
    assert "constraints.txt not found" not in shown
    assert "[green]" not in shown
    assert "[/]" not in shown
    assert doctor.check_packages(tmp_path / "constraints.txt").state == doctor.OK
