"""Planted faults: each kind of stage has one, and planting leaves the finished demo as it is."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import fault_planting, same_seed_variation, verify_sees
from benchmarks.fault_planting import Planting, again, commands, exchanged, instead
from benchmarks.same_seed_variation import CHAINS, false_alarms, inputs, joined, spread
from benchmarks.verify_faults import FAULTS, Fault, inverted_wins, one_order, rotated
from rlhf_core.errors import DataError
from tasks.commands import verify
from tasks.commands.fingerprints import EXACT_KINDS, Fingerprint, NumberField, TextField, fingerprint
from tasks.graph.dvc_files import STAGES, render
from tasks.graph.matrix import HEADLINE_ROWS
from tasks.running.artifacts import digest, read_json, read_jsonl, write_json, write_jsonl
from tests import small_repository

PROJECT = Path(__file__).resolve().parents[2]
POLICY, OTHER = "segment/policy/segment/0", "segment/policy/bandit/0"
MODEL, NORMALISER = "segment/reward_model/segment/0", "segment/normaliser/segment/0"
CODE_OF_SMALL = ("tasks", "params", "params.yaml", "dvc.yaml")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the project's DVC files, that of the headline rows included."""
    root = tmp_path_factory.mktemp("graph")
    for path, text in render(PROJECT, [HEADLINE_ROWS]).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def kinds(graph: Path, stages: set[str]) -> set[str]:
    return {commands(graph)[stage][2].removeprefix("tasks.") for stage in stages}


def write_result(root: Path, stage: str, response: str, win_rate: float) -> Path:
    out = root / "results" / "testbed" / stage
    (out / "result").mkdir(parents=True)
    (out / "record").mkdir()
    rows = [{"id": str(i), "response": f"{response} {i}", "first": "baseline"} for i in range(10)]
    write_jsonl(out / "result" / "judgements.jsonl", rows)
    write_json(out / "result" / "metrics.json", {"win_rate_vs_sft": win_rate})
    record = {
        "stage": "policy",
        "version": 1,
        "seconds": 1.0,
        "inputs": {f"params/segment/rows.yaml:{response}": "a" * 64},
    }
    write_json(out / "record" / "record.json", record | {"result_digest": digest(out / "result")})
    return out


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = small_repository.create(tmp_path / "finished")
    write_result(root, POLICY, "segment", 70.0)
    write_result(root, OTHER, "bandit", 60.0)
    return root


def test_every_kind_of_stage_of_the_demos_has_a_fault(graph: Path) -> None:
    there = kinds(graph, set(commands(graph))) - {"check"}
    assert there <= set(STAGES)
    assert kinds(graph, {stage for fault in FAULTS.values() for stage in fault.stages}) == there


def test_every_kind_of_stage_that_uses_a_model_is_run_again(graph: Path) -> None:
    run_again = kinds(graph, {stage for chain in CHAINS.values() for stage in chain})
    assert run_again == kinds(graph, set(commands(graph))) - {"check", *EXACT_KINDS}


def test_a_chain_reads_what_ran_before_it(graph: Path) -> None:
    for chain in CHAINS.values():
        for place, stage in enumerate(chain):
            read = {path.relative_to("results/testbed").as_posix() for path in inputs(graph, stage)}
            assert not read & set(chain[place:]), f"{stage} reads what its chain makes later"


def deviations(root: Path, work: Path, fault: Fault) -> dict[str, int]:
    """Plants a fault; returns how many deviations there are, of results and of inputs."""
    variation = {"policy": {"metrics/win_rate_vs_sft": [15, 0.01, 0.02], "judgements.jsonl/response": [15, 0.05, 0.1]}}
    before = digest(root)
    told = verify_sees.detection_record(fault, *verify_sees.planted(root, work, fault, variation), 1000)
    assert digest(root) == before, "the finished demo stays as it is"
    return {"results": told["results"], "inputs": told["inputs"]}


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (Fault("wins count as losses", (POLICY,), inverted_wins), {"results": 1, "inputs": 0}),
        (Fault("one order", (POLICY,), one_order), {"results": 1, "inputs": 0}),
        (Fault("the next answer", (POLICY,), rotated("judgements.jsonl", "response")), {"results": 1, "inputs": 0}),
        (Fault("another row", (POLICY,), instead(OTHER)), {"results": 2, "inputs": 2}),
        (Fault("rows exchanged", (POLICY, OTHER), exchanged), {"results": 4, "inputs": 4}),
        (Fault("nothing", (POLICY,), lambda at: None), {"results": 0, "inputs": 0}),
    ],
    ids=lambda value: value.says if isinstance(value, Fault) else "",
)
def test_planted_faults_are_found(root: Path, tmp_path: Path, fault: Fault, found: dict[str, int]) -> None:
    assert deviations(root, tmp_path / "work", fault) == found


def test_a_changed_result_has_a_record_that_fits(root: Path, tmp_path: Path) -> None:
    at = Planting(root, tmp_path / "work", (POLICY,))
    at.begin()
    one_order(at)
    at.seal()
    assert {row["first"] for row in read_jsonl(at.result() / "judgements.jsonl")} == {"model"}
    record = read_json(at.copy(POLICY) / "record" / "record.json")
    assert record["result_digest"] == digest(at.result())


def test_a_stage_runs_again_with_one_thing_changed(root: Path, tmp_path: Path) -> None:
    def plant(**changes: object) -> float:
        at = Planting(root, tmp_path / str(len(changes)), (POLICY,))
        at.begin()
        again(**changes)(at)  # type: ignore[arg-type]
        return float(read_json(at.result() / "metrics.json")["true_reward"])

    assert plant() != plant(scale={"optimiser": {"kl_coef": 0}})


def made(answers: int, loss: float) -> Fingerprint:
    """Returns a fingerprint of a policy of which some of 100 answers are others."""
    values = [f"another {i}" if i < answers else str(i) for i in range(100)]
    texts = {"generations.jsonl/response": TextField.of(values), "generations.jsonl/id": TextField.of(["1"], 0)}
    return Fingerprint("policy", 1, {}, texts, {}, {"loss": loss})


def test_the_spread_is_the_largest_distance_of_re_runs() -> None:
    reruns = [{POLICY: (made(0, 1.0), made(20, 1.1))}, {POLICY: (made(0, 1.0), made(50, 1.02))}]
    assert spread(reruns) == {
        "policy": {
            "generations.jsonl/response": [2, pytest.approx(0.38, abs=0.03), pytest.approx(0.5, abs=0.03)],
            "metrics/loss": [2, pytest.approx(0.072, abs=0.001), pytest.approx(0.1)],
        }
    }


def test_what_cannot_be_compared_in_a_re_run_has_no_spread() -> None:
    shorter = Fingerprint("policy", 1, {}, {}, {"x": NumberField(1, 0.0, 1.0, (0.0,))})
    longer = Fingerprint("policy", 1, {}, {}, {"x": NumberField(2, 0.0, 1.0, (0.0,))})
    assert spread([{POLICY: (shorter, longer)}]) == {"policy": {"x": None}}


def test_ids_of_rows_that_differ_in_a_re_run_are_not_compared() -> None:
    finished, again_ = (made(0, 1.0) for _ in range(2))
    again_.texts["generations.jsonl/id"] = TextField.of(["2"], 0)
    found = spread([{POLICY: (finished, again_)}])
    assert found["policy"]["generations.jsonl/id"] is None
    assert verify.tolerance(found, finished, "generations.jsonl/id") is None
    assert verify.tolerance({}, finished, "generations.jsonl/id") == 0


def test_rows_of_a_table_that_did_not_run_again_do_not_narrow_its_tolerance() -> None:
    rows = {f"table-1/{row}/0/alpaca_lc": 40.0 for row in ("bandit", "segment", "token")}
    finished = Fingerprint("tables", 1, {}, metrics=rows)
    changed = Fingerprint("tables", 1, {}, metrics=rows | {"table-1/segment/0/alpaca_lc": 44.0})
    found = spread([{"segment/tables-demo": (finished, changed)}])
    assert found == {"tables": {"metrics/alpaca_lc": [1, pytest.approx(0.1), pytest.approx(0.1)]}}


def test_false_alarms_are_counted_with_the_tolerances_of_other_re_runs() -> None:
    near, far = {POLICY: (made(0, 1.0), made(5, 1.01))}, {POLICY: (made(0, 1.0), made(90, 1.01))}
    found = false_alarms({"first": near, "second": near, "third": far})
    assert [len(each["alarms"]) for each in found.values()] == [0, 0, 1]
    assert false_alarms({"only": near})["only"]["compared"] == 1, "ids alone have a tolerance"
    assert false_alarms({"only": near}, spread([near]))["only"]["compared"] == 3


def test_re_runs_that_are_added_count_with_those_before() -> None:
    near, far = {POLICY: (made(0, 1.0), made(20, 1.1))}, {POLICY: (made(0, 1.0), made(50, 1.02))}
    one, other = spread([near]), spread([far])
    together = joined(one, other)
    assert together["policy"].keys() == spread([near, far])["policy"].keys()
    for name, summary in spread([near, far])["policy"].items():
        assert together["policy"][name] == pytest.approx(summary, rel=0.01)
    assert joined({}, one) == joined(one, {}) == one
    assert joined(one, {"policy": {"metrics/loss": None}, "sft": {"x": [1, 0.5, 0.5]}}) == {
        "policy": one["policy"] | {"metrics/loss": None},
        "sft": {"x": [1, 0.5, 0.5]},
    }


def test_another_machines_results_are_a_re_run_of_the_references(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The finished stages are those of the reference until the other machine has another win rate."""
    reference = {stage: fingerprint(root / "results/testbed" / stage, root) for stage in (POLICY, OTHER)}
    monkeypatch.setattr(same_seed_variation, "read_reference", lambda root, what: (reference, {}))
    record, before = tmp_path / "record.json", {"policy": {"metrics/win_rate_vs_sft": [2, 0.001, 0.001]}}
    write_json(record, {"re-runs": {}, "spread": before})
    shutil.rmtree(root / "results/testbed" / POLICY)
    write_result(root, POLICY, "segment", 35.0)
    call = [str(root), "--machine", "old-cpu", "--record", str(record)]
    same_seed_variation.main(call)
    assert "old-cpu: 2 stages" in capsys.readouterr().out
    added = read_json(record)
    assert [words.split(" is ")[0] for words in added["re-runs"]["old-cpu"]["alarms"]] == [
        f"{POLICY}: metrics/win_rate_vs_sft"
    ]
    assert added["spread"]["policy"]["metrics/win_rate_vs_sft"] == [4, 0.25, 0.5], "two stages each"
    with pytest.raises(SystemExit):
        same_seed_variation.main(call)
    assert "has re-runs old-cpu: choose another --machine" in capsys.readouterr().err
    assert read_json(record) == added
    page = root / "results/testbed" / POLICY / "record/record.json"
    write_json(page, read_json(page) | {"inputs": {"params/segment/rows.yaml:segment": "b" * 64}})
    with pytest.raises(DataError, match=r"settings params/segment/rows.yaml:segment differ from the reference's"):
        same_seed_variation.main([*call[:2], "other", *call[3:]])
    assert read_json(record) == added


def test_a_chain_runs_again_in_another_tree(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(same_seed_variation, "CHAINS", {"segment": (MODEL, NORMALISER)})
    monkeypatch.setattr(same_seed_variation, "CODE", CODE_OF_SMALL)
    for stage in commands(root):
        if stage not in (POLICY, OTHER):
            write_result(root, stage, "above", 50.0)
    before = digest(root)
    record = tmp_path / "record.json"
    call = [str(root), "--work", str(tmp_path / "work"), "--roundings", "sse", "--record", str(record)]
    same_seed_variation.main(call)
    assert f"segment sse: {NORMALISER} in" in capsys.readouterr().out
    assert read_json(record)["re-runs"]["segment-sse"]["stages"] == 2
    assert digest(root) == before
    same_seed_variation.main(call)
    assert "in" not in capsys.readouterr().out.split("segment-sse")[0], "what has run is not run again"
    tree = tmp_path / "work" / "segment-sse"
    made = [folder / "results" / "testbed" / MODEL / "result" / "metrics.json" for folder in (tree, root)]
    read = read_json(tree / "results" / "testbed" / NORMALISER / "record" / "record.json")["inputs"]
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in made]
    assert read[f"results/testbed/{MODEL}/result"] == digests[0] != digests[1], "it reads what the chain made before"


def test_the_command_plants_and_records(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wins, row = (Fault("", (POLICY,), plant) for plant in (inverted_wins, instead(OTHER)))
    monkeypatch.setattr(verify_sees, "FAULTS", {"wins": wins, "row": row})
    monkeypatch.setattr(fault_planting, "CODE", CODE_OF_SMALL)
    write_json(tmp_path / "variation.json", {"spread": {}})
    before = digest(root)
    options = {"work": tmp_path / "work", "variation": tmp_path / "variation.json", "record": tmp_path / "record.json"}
    verify_sees.main([str(root), *(word for name, path in options.items() for word in (f"--{name}", str(path)))])
    assert "found 1 of 2, 0 by results alone" in capsys.readouterr().out
    record = read_json(tmp_path / "record.json")
    assert {name: each["inputs"] for name, each in record["faults"].items()} == {"wins": 0, "row": 2}
    assert digest(root) == before


#: Stages of the demo and the ones whose results are put in their place.
EXCHANGES = [
    ("demo/policy/par/1", "demo/policy/vanilla/1"),
    ("demo/policy/segment/1", "demo/policy/par/1"),
    ("demo/policy/par/1", "demo/policy/par/7"),
    ("demo/reward_model/whole/1", "demo/reward_model/segments/1"),
    ("demo/reward_model/whole/1", "demo/reward_model/whole/7"),
    ("demo/references/whole/1", "demo/references/whole/7"),
    ("shared/sft/demo/1", "shared/sft/demo/7"),
    ("shared/data/demo/1", "shared/data/demo/7"),
    ("shared/tokenizer/demo/1", "shared/tokenizer/demo/7"),
    ("shared/entropies/demo/1", "shared/entropies/demo/7"),
]


@pytest.mark.parametrize(("stage", "other"), EXCHANGES)
def test_a_result_of_the_demo_in_the_place_of_another_is_found_by_what_it_says(stage: str, other: str) -> None:
    """With the committed reference and tolerances; the record says that it read what it should have read."""
    reference, variation = verify.read_reference(PROJECT, verify.DEMO)
    planted = replace(reference[other], inputs=reference[stage].inputs)
    assert verify.compare(stage, reference[stage], planted, variation).beyond
    assert not verify.compare(stage, reference[stage], reference[stage], variation).deviations
