"""A table of choices finds, builds and refuses by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest

from rlhf_core.choices import Choices
from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.judges.choices import JUDGES
from rlhf_core.segmentation.segmenters import build_segmenter
from rlhf_core.shaping.choices import build_shaping
from rlhf_core.supervised.recipes import RECIPES
from rlhf_core.teachers.choices import TEACHERS
from rlhf_core.typed import Checked, above


@dataclass(frozen=True)
class Steep(Checked):
    k: Annotated[float, above(0)] = 1.0
    shift: float = 0.0


def straight(slope: float, offset: float = 0.0) -> tuple[float, float]:
    return slope, offset


CURVES = Choices("curve", {"steep": Steep, "steepest": partial(Steep, k=9.0), "straight": straight}, needs=("__doc__",))


def test_a_choice_is_built_from_its_name_or_with_options() -> None:
    assert CURVES.build("steep") == Steep()
    assert CURVES.build({"kind": "steep", "k": 2}) == Steep(2)
    assert CURVES.build({"kind": "steepest", "shift": 1.0}) == Steep(9.0, 1.0)
    assert CURVES.build({"kind": "straight", "slope": 2.0}) == (2.0, 0.0)
    assert CURVES.build({"kind": "straight"}, slope=3.0, shift=1.0) == (3.0, 0.0)
    assert CURVES.named("steepest") is Steep
    assert list(CURVES) == ["steep", "steepest", "straight"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("step", "unknown curve 'step'; did you mean 'steep'?"),
        ({"kind": "circle"}, "unknown curve 'circle'; known: steep, steepest, straight"),
        ({"k": 1}, "curve: 'kind' is missing"),
        (["steep"], "curve is ['steep']; it must be a mapping, as in {kind: steep}"),
        ({"kind": 5}, "unknown curve '5'"),
        ({"kind": "steep", "K": 1}, "curve 'steep': unknown option 'K'"),
        ({"kind": "steep", 5: 1}, "curve 'steep': unknown option '5'"),
        ({"kind": "steep", "k": 0}, "curve 'steep': k is 0; it must be above 0"),
        ({"kind": "steepest", "k": 1}, "curve 'steepest': unknown option 'k'"),
        ({"kind": "straight"}, "curve 'straight': missing a required argument: 'slope'"),
        ({"kind": "nowhere:Curve"}, "curve 'nowhere:Curve': No module named 'nowhere'"),
        ({"kind": "math:curve"}, "curve 'math:curve': module math has no 'curve'"),
    ],
)
def test_what_a_table_does_not_have_is_refused(spec: object, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        CURVES.build(spec)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)


def test_a_choice_of_the_users_own_is_imported_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_curves.py").write_text(
        "from dataclasses import dataclass\n\n\n@dataclass\nclass Wave:\n    '''A wave.'''\n\n    period: float\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert CURVES.build({"kind": "own_curves:Wave", "period": 2.0}).period == 2.0
    with pytest.raises(RecipeError, match="unknown option 'perod'; did you mean 'period'"):
        CURVES.build({"kind": "own_curves:Wave", "perod": 2.0})
    assert Choices("curve", {}, needs=("order",)).refusal("own_curves:Wave") == "curve 'own_curves:Wave' lacks order"


OWN = """\
import dataclasses

class Plain:
    judge, needs_world = None, False

@dataclasses.dataclass
class Fails:
    number: "1 +" = 1
    def __post_init__(self):
        raise ValueError("no number fits")
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / f"own_{tmp_path.name.replace('-', '_')}.py"
    monkeypatch.syspath_prepend(tmp_path)
    return file


@pytest.mark.parametrize("table", [JUDGES, TEACHERS, RECIPES])
def test_a_plain_class_in_place_of_a_dataclass_is_named_with_its_file(table: Choices[Any], own_module: Path) -> None:
    own_module.write_text(OWN)
    message = "is not a dataclass; write @dataclass above its class"
    with pytest.raises(RecipeError, match=re.escape(message)):
        table[f"{own_module.stem}:Plain"]
    with pytest.raises(RecipeError, match="is not a dataclass"):
        table["os:environ"]


def test_an_own_class_that_fails_is_refused_with_the_line_of_its_error(own_module: Path) -> None:
    own_module.write_text(OWN)
    with pytest.raises(RecipeError, match=re.escape(f"line 10 of {own_module}: ValueError: no number fits")):
        CURVES.build({"kind": f"{own_module.stem}:Fails", "number": 2})


@pytest.mark.parametrize(
    ("base", "method", "build"),
    [
        ("shaping.steps.Elementwise", "shape", build_shaping),
        ("shaping.steps.Centered", "curve", build_shaping),
        ("shaping.steps.Running", "by", build_shaping),
        ("segmentation.segments.Segmenter", "segment", build_segmenter),
    ],
)
def test_an_own_class_without_its_method_is_refused(
    own_module: Path, base: str, method: str, build: Callable[..., Any]
) -> None:
    module, _, name = base.rpartition(".")
    own_module.write_text(
        f"from dataclasses import dataclass\nfrom rlhf_core.{module} import {name}\n\n\n"
        f"@dataclass\nclass Own({name}):\n    height: float = 1.0\n"
    )
    with pytest.raises(RecipeError, match=rf"abstract class Own .*{method}"):
        build({"kind": f"{own_module.stem}:Own"})


def test_a_module_that_ends_the_process_and_a_builtin_are_refused(own_module: Path) -> None:
    own_module.write_text("import sys; sys.exit()")
    with pytest.raises(RecipeError, match="ends the process when it is imported"):
        CURVES[f"{own_module.stem}:curve"]
    with pytest.raises(RecipeError, match="curve 'builtins:max' does not say which options it takes"):
        CURVES.build({"kind": "builtins:max"})
