"""Claims of ALARM: verdicts are computed from the runs. All numbers are invented."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tasks.params.pages import read_settings
from tasks.report.claim_kinds import Selected
from tasks.report.claims import claims_of, paper_claims_figure
from tasks.report.figures_alarm import figures
from tasks.report.outputs import ResultTree
from tasks.running.artifacts import write_jsonl

ROOT = Path(__file__).resolve().parents[3]
PROMPTS = 40
SEEDS = (0, 1, 2)
MOST, LEAST = "QA: ALARM wins by the factuality rate", "QA: ALARM wins by the holistic reward"
TIES = "QA: ALARM ties with one and outperforms another: with each single reward in what that is trained for"
CHOSEN = "Factuality is the aspect that is most consistent with the holistic reward, and chosen"


def write_policy(results: Path, name: str, seed: int, **scores: list[float]) -> None:
    """A run whose test answers have these scores, one after the other and again; to the last prompt all rows say the
    same, and to up to three of the first, other ones at each seed, this row the worst."""
    folder = results / "alarm" / "policy" / name / str(seed) / "result"
    folder.mkdir(parents=True)
    rows: list[dict[str, Any]] = [
        {"id": str(i), **{by: values[i % len(values)] for by, values in scores.items()}} for i in range(PROMPTS)
    ]
    for row in rows[: (7 * seed + len(name)) % 4]:
        row |= {by: 6.0 if by == "grammar" else -0.1 for by in scores}
    rows[-1] |= dict.fromkeys(scores, 0.0)
    write_jsonl(folder / "scores.jsonl", rows)
    means = {f"score/{by}": sum(row[by] for row in rows) / PROMPTS + 0.001 * seed for by in scores}
    (folder / "metrics.json").write_text(json.dumps(means))
    (folder / "judge.json").write_text(json.dumps({"judge": None, "lower_is_better": ["grammar"]}))


def write_selection(results: Path, task: str, seed: int, apart: dict[str, int]) -> None:
    """The holistic reward always prefers the greedy answer; each aspect the other one in about so many of 40 pairs."""
    noise = random.Random(f"{task}/{seed}")
    apart = {aspect: min(PROMPTS - 1, wrong + noise.randrange(3)) for aspect, wrong in apart.items()}
    folder = results / "alarm" / "selection" / task / str(seed) / "result"
    folder.mkdir(parents=True)
    rows = []
    for i in range(PROMPTS):
        greedy, sampled = {"holistic": 1.0}, {"holistic": 0.0}
        for aspect, wrong in apart.items():
            better = (i >= wrong) != (aspect == "grammar")
            greedy[aspect], sampled[aspect] = float(better), float(not better)
        rows.append({"id": f"{seed}-{i}", "greedy": greedy, "sampled": sampled})
    write_jsonl(folder / "answers.jsonl", rows)
    shares = {aspect: 100 * wrong / PROMPTS for aspect, wrong in apart.items()}
    rates = {f"win_rate/{aspect}": 100 - share for aspect, share in shares.items()} | {"win_rate/holistic": 100.0}
    apart_by = {f"inconsistency/{aspect}": share for aspect, share in shares.items()}
    (folder / "metrics.json").write_text(json.dumps(apart_by | rates))


def verdicts(results: Path, seeds: tuple[int, ...] = SEEDS) -> dict[str, str]:
    (block,) = paper_claims_figure("alarm", ResultTree(results, seeds)).blocks
    return {row["text"]: row["verdict"] for row in block["rows"]}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Over three seeds ALARM is factual, yet the holistic reward says that others are better."""
    for seed in SEEDS:
        write_policy(tmp_path, "qa-alarm", seed, holistic=[0.5, 0.6], factuality=[0.9, 0.8])
        write_policy(tmp_path, "qa-holistic", seed, holistic=[0.9, 0.7], factuality=[0.4, 0.6])
        write_policy(tmp_path, "qa-factuality", seed, holistic=[0.6, 0.5], factuality=[0.9, 0.8])
        write_policy(tmp_path, "qa-weighted-sum", seed, holistic=[0.7, 0.7], factuality=[0.7, 0.7])
        write_selection(tmp_path, "qa", seed, {"factuality": 3, "relevance": 30, "completeness": 20, "length": 38})
        write_selection(tmp_path, "mt", seed, {"grammar": 20, "confidence": 30, "readability": 38, "length": 1})
    return tmp_path


def test_verdicts_follow_the_runs(results: Path) -> None:
    found = verdicts(results)
    assert found[LEAST] == "contradicted"
    assert found[MOST] == "undecided", "it ties with the row of the same aspect"
    assert found[TIES] == "contradicted", "it loses to the holistic row by the holistic reward"
    assert found["QA: ALARM wins by the judge"] == "not run", "no judge was named"
    assert found["QA: ALARM has a higher mean factuality rate than the holistic and the summed reward"] == "confirmed"
    assert found["MT: ALARM wins by the holistic reward"] == "not run"


def test_the_most_consistent_aspect_is_told_from_the_pairs(results: Path) -> None:
    found = verdicts(results)
    assert found[CHOSEN] == "confirmed"
    assert found["Grammar is more consistent with the holistic reward than confidence and readability"] == "confirmed"
    beside_length = "Grammar is more consistent than length, which Table 7 has among the aspects, and chosen"
    assert found[beside_length] == "contradicted"
    assert found["By grammar greedy answers win more often than by confidence and readability"] == "confirmed"


def test_fewer_errors_win(tmp_path: Path) -> None:
    for seed in SEEDS:
        write_policy(tmp_path, "mt-alarm", seed, holistic=[0.9, 0.8], grammar=[1.0, 2.0])
        for other in ("mt-holistic", "mt-grammar", "mt-weighted-sum"):
            write_policy(tmp_path, other, seed, holistic=[0.5, 0.6], grammar=[3.0, 5.0])
    found = verdicts(tmp_path)
    assert found["MT: ALARM wins by the grammar error rate"] == "confirmed"
    assert found["MT: ALARM has the highest mean holistic reward"] == "confirmed"
    above = "MT: yet its mean grammar error rate is above those of the aspect's and the summed reward"
    assert found[above] == "contradicted"


def test_mean_win_rates_of_the_ablation_are_against_the_rows_of_other_aspects(tmp_path: Path) -> None:
    for seed in SEEDS:
        for place, name in enumerate(claims_of("alarm").file.rival_groups["qa"]):
            last = 0.1 + 0.4 * seed if place == 1 else 1.0 - 0.2 * place
            write_policy(tmp_path, name, seed, holistic=[1.0 - 0.2 * place, 1.0 - 0.2 * place, last])
        write_policy(tmp_path, "qa-holistic", seed, holistic=[9.0])
    (block,) = paper_claims_figure("alarm", ResultTree(tmp_path, SEEDS)).blocks
    (claim,) = [
        row for row in block["rows"] if row["text"] == "QA: the aspect that is chosen leads by the holistic reward"
    ]
    assert all(part["values"][0] > 95 for part in claim["parts"])
    assert claim["parts"][2]["values"][1] < 20


def test_one_seed_decides_nothing(results: Path) -> None:
    assert set(verdicts(results, (0,)).values()) == {"undecided", "not run"}


def test_every_selection_is_of_aspects_that_it_chooses_among() -> None:
    parts = [part.fields for claim in claims_of("alarm").claims for part in claim.parts if part.kind == "selected"]
    assert {part.row for part in parts} == {"qa-selection", "mt-selection"}
    for part in parts:
        assert isinstance(part, Selected)
        task = part.row.removesuffix("-selection")
        known = read_settings(ROOT / f"params/alarm/selections.yaml:{task}")["aspects"]
        assert {part.aspect, *part.others} <= set(known)


def test_claims_stand_at_the_head_of_the_papers_part(tmp_path: Path) -> None:
    first = figures(ResultTree(tmp_path, (0,)))[0]
    assert (first.key, first.blocks) == ("claims", [])
    assert first.missing == ["the rows of Tables 1 and 4 and the selections"]
