"""Pages: a base and what each entry says beside it, read as DVC reads them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import DataError, RecipeError
from tasks.params.pages import Address, entries, merge, read_page, read_settings, settings_digest
from tasks.params.scales import scale_entries
from tasks.params.yaml_files import parse_mapping
from tasks.running.artifacts import Inputs
from tests import small_repository
from tests.small_repository import command, set_entry

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path for path in (ROOT / "params").rglob("*.yaml") if path.name not in ("reevaluation.yaml", "scale.yaml")
)
BASE = {"kind": "reward", "readout": {"segmenter": {"kind": "bandit"}, "read": "value"}, "clamp": 5, "steps": [1, 2]}


@pytest.mark.parametrize(
    ("own", "merged"),
    [
        (
            {"readout": {"read": "aggregate"}},
            {**BASE, "readout": {"segmenter": {"kind": "bandit"}, "read": "aggregate"}},
        ),
        (
            {"readout": {"segmenter": {"kind": "ngram", "n": 2}}},
            {**BASE, "readout": {"segmenter": {"kind": "ngram", "n": 2}, "read": "value"}},
        ),
        ({"kind": "supervised", "x": 1}, {"kind": "supervised", "x": 1}),
        ({"steps": [3]}, {**BASE, "steps": [3]}),
        ({"clamp": None}, {name: value for name, value in BASE.items() if name != "clamp"}),
        ({"credit": None}, {**BASE, "credit": None}),
    ],
)
def test_an_entry_is_merged_with_its_base(own: dict[str, Any], merged: dict[str, Any]) -> None:
    before = json.dumps(BASE)
    assert merge(BASE, own) == merged
    assert json.dumps(BASE) == before


def test_variants_are_made_under_every_name() -> None:
    page = read_page(ROOT / "params/hackability/rows.yaml")
    assert len(page.names) == 4 * len(page.entries)
    assert page.entry("length-warm")["reward_model"] == "length-warm"
    assert page.entry("flattery-length-penalty")["title"] == "Length penalty, reward flattery"
    assert page.keys("length-warm") == ["base", "variants.warm"]


NOT_A_PAGE = [
    ("a:\n  x: 1\na:\n  x: 2\n", "line 3, field 'a': is set twice. Delete one"),
    ("a: {x: 1}\nb:\n  y: 1\n  y: 1\n", "line 4, field 'y': is set twice. Delete one"),
    ("kl0.01: {x: 1}\n", "field 'kl0.01': a name has small letters"),
    ("1: {x: 1}\n", "line 1, field '1': a name must be text. Write one name in quotes"),
    ("? [a]\n: 1\n", "line 1: a name must be text. Write one name in quotes"),
    ("a: 3\n", "field 'a': is 3. Each entry of a page is a mapping"),
    ("each: {r: [x]}\nvariants: {a: {}}\nb: {}\n", "field 'b': is not part of a page of variants"),
    ("each: [x]\nvariants: {a: {}}\n", "field 'each': expected one list of names"),
    ("each: {r: []}\nvariants: {a: {}}\n", "field 'each.r': names nothing"),
    ("a: 1\nb: c: 2\n", "line 2: not valid YAML (mapping values are not allowed in this context)"),
    ("a: [", "not valid YAML"),
    ("- a\n", "expected a mapping of settings"),
    *[(f"a: {{x: 1}}\nb: {value}\n", "line 2: not valid YAML (") for value in ('!!int "abc"', "2020-13-45", "9" * 400)],
    ("a: " + "[" * 100_000, "nested too deeply. At most 100"),
    ("\n".join(f"{' ' * n}a:" for n in range(200)), "nested too deeply. At most 100"),
    ("a: &a [*a]", "has an alias. Write out what each *name stands for"),
]


@pytest.mark.parametrize(("text", "message"), NOT_A_PAGE, ids=lambda part: part[:20].strip())
def test_what_is_not_a_page_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "rows.yaml").write_text(text)
    with pytest.raises(DataError) as refused:
        read_page(tmp_path / "rows.yaml")
    assert f"{tmp_path / 'rows.yaml'}" in str(refused.value)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value), "a log keeps the line that begins with error:"


def test_an_entry_of_two_pages_is_refused(tmp_path: Path) -> None:
    set_entry(tmp_path / "params/x/rows.yaml", "a", {})
    set_entry(tmp_path / "params/x/rows_more.yaml", "a", {})
    with pytest.raises(RecipeError, match=r"rows_more.yaml: 'a' is in params/x/rows.yaml, too; delete one"):
        entries(tmp_path, "params/x", "rows")


@pytest.mark.parametrize(
    "text", ["1e-3", "1.0e-3", "0x1f", "010", "1_000", "yes", "on", "null", "~", "True", ".5", "1.", "a"]
)
def test_values_are_read_as_dvc_reads_them(text: str) -> None:
    from dvc.utils.serialize import parse_yaml

    ours, dvcs = parse_mapping(f"a: {text}\n", "x.yaml"), parse_yaml(f"a: {text}\n", "x.yaml")
    assert (ours, type(ours["a"])) == (dvcs, type(dvcs["a"]))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT / "params").as_posix())
def test_a_committed_page_is_short_and_repeats_no_value_of_its_base(path: Path) -> None:
    page = read_page(path)
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 150
    assert len(page.entries) <= 26
    for name, own in page.entries.items():
        if own.get("kind", page.base.get("kind")) != page.base.get("kind"):
            continue  # an entry of another kind takes nothing from the base
        assert not [field for field in own if field in page.base and own[field] == page.base[field]], name


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT / "params").as_posix())
def test_dvc_leaves_a_committed_page_as_it_is_when_it_changes_a_value(path: Path, tmp_path: Path) -> None:
    from dvc.utils.serialize import modify_yaml

    copy = Path(shutil.copy(path, tmp_path))
    with modify_yaml(copy):
        pass
    written = [line.replace(": null", ":").rstrip() for line in path.read_text(encoding="utf-8").splitlines()]
    found = [line.replace(":      #", ": #").rstrip() for line in copy.read_text(encoding="utf-8").splitlines()]
    assert found == [line.replace(": null #", ": #") for line in written]


def test_a_scale_takes_pages_and_stages_of_the_scale_that_it_extends(tmp_path: Path) -> None:
    for scale, kind, name, size in (
        ("big", "aspects", "length", 1),
        ("big", "stages", "references", 1),
        ("big", "stages", "normaliser", 1),
        ("big", "backbones", "large", 1),
        ("small", "stages", "normaliser", 2),
        ("small", "backbones", "little", 2),
    ):
        set_entry(tmp_path / f"params/scales/{scale}/{kind}.yaml", name, {"size": size})
    (tmp_path / "params/scales/small/scale.yaml").write_text("extends: big\n")
    assert [*scale_entries(tmp_path, "small", "aspects")] == ["length"]
    assert [*scale_entries(tmp_path, "small", "backbones")] == ["little"]
    stages = scale_entries(tmp_path, "small", "stages")
    assert {name: read_settings(one.under(tmp_path))["size"] for name, one in stages.items()} == {
        "references": 1,
        "normaliser": 2,
    }
    (tmp_path / "params/scales/small/scale.yaml").write_text("extends: bigg\n")
    with pytest.raises(RecipeError, match=r"extends is 'bigg', which is not another scale; did you mean 'big'"):
        scale_entries(tmp_path, "small", "stages")


def test_of_a_page_only_the_entry_is_an_input(tmp_path: Path) -> None:
    page = tmp_path / "rows.yaml"
    set_entry(page, "a", {"x": 1})
    address = Address(f"{page}:a")
    read, before = Inputs.of([address]), settings_digest(address)
    set_entry(page, "b", {"x": 2})
    read.refuse_changed_inputs()
    assert settings_digest(address) == before
    set_entry(page, "a", {"x": 2})
    with pytest.raises(DataError, match="it changed while the stage that reads it ran"):
        read.refuse_changed_inputs()


@pytest.mark.platform
def test_a_value_set_on_dvcs_command_line_runs_that_row_only(finished_copy: Path) -> None:
    root = finished_copy
    (root / ".work/calls").unlink()
    change = "params/segment/rows.yaml:++segment.optimiser.kl_coef=0.01"
    command("dvc", "exp", "run", "-q", "-S", change, "policy-segment-segment-0", root=root)
    ran = [line.split()[1] for line in (root / ".work/calls").read_text().splitlines()]
    assert ran == ["results/testbed/segment/check", "results/testbed/segment/policy/segment/0"]
    changed = {**small_repository.DEFAULT_ROWS["segment"]["optimiser"], "kl_coef": 0.01}
    assert read_settings(root / "params/segment/rows.yaml:segment")["optimiser"] == changed
    assert "segment.optimiser.kl_coef" in command("dvc", "params", "diff", root=root).stdout
    metrics = command("dvc", "metrics", "diff", root=root).stdout
    assert "results/testbed/segment/policy/segment/0/headline.json" in metrics
    assert "policy/bandit/0" not in metrics
    shown = command("dvc", "exp", "show", "--csv", root=root).stdout.splitlines()[0].split(",")
    of_metrics = [column for column in shown if "headline.json" in column]
    assert len({column.rpartition(":")[2] for column in of_metrics}) <= 6
    assert [column for column in shown if column.endswith("segment.optimiser.kl_coef")]
