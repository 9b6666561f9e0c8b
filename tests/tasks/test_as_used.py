"""Settings that a stage used, as its record and its fingerprint have them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rlhf_core import as_used
from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.models.sampling import Sampling
from tasks.commands import verify
from tasks.commands.fingerprints import Fingerprint, fingerprint
from tasks.running.artifacts import read_json, read_jsonl, write_jsonl
from tests.tasks.tiny_pipeline import SETTINGS, Pipeline, changed

FIRST, SECOND = EncodedSequence([1, 2], [3]), EncodedSequence([1], [4, 5])


@pytest.fixture(autouse=True)
def no_notes() -> None:
    as_used.take_notes()


def used(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_json(out / "record" / "record.json")["as_used"]
    return found


def test_the_record_says_how_responses_were_drawn(pipeline: Pipeline) -> None:
    assert used(pipeline.out("samples"))["sampling"] == {
        "samples": [{"max_new_tokens": 12, "temperature": 0.7, "top_k": 0, "top_p": 0.95}]
    }
    evaluated = [{"max_new_tokens": n, "temperature": t, "top_k": 0, "top_p": 1.0} for n, t in ((12, 1.0), (8, 0))]
    assert used(pipeline.out("ppo"))["sampling"] == {"answers": evaluated, "rollouts": evaluated[:1]}


def test_the_record_says_how_a_policy_and_a_reward_model_were_trained(pipeline: Pipeline) -> None:
    assert used(pipeline.out("ppo"))["optimiser"]["kl_coef"] == 0.01
    assert used(pipeline.out("reward_model"))["training"]["learning_rate"] == 0.001
    assert used(pipeline.out("reward_model"))["examples"]["steps"] == "2"


def run_with(pipeline: Pipeline, name: str, out: Path, **arguments: Path) -> dict[str, str]:
    """Runs a stage again with other arguments; returns the digests of its examples."""
    module, line = pipeline.arguments(name, out)
    for argument, path in arguments.items():
        line[line.index(f"--{argument}") + 1] = str(path)
    import_module(module).main(line)
    digests: dict[str, str] = used(out)["examples"]
    return digests


def test_examples_are_the_same_in_other_microbatches(pipeline: Pipeline, tmp_path: Path) -> None:
    own = Pipeline(tmp_path).write({"scale": changed(SETTINGS["reward_model_scale"], "microbatch", 4)})
    again = run_with(pipeline, "reward_model", tmp_path / "out", scale=own.settings("scale"))
    assert again == used(pipeline.out("reward_model"))["examples"]


def test_exchanged_labels_are_other_examples(pipeline: Pipeline, tmp_path: Path) -> None:
    data = Path(shutil.copytree(pipeline.result("data"), tmp_path / "data"))
    rows = read_jsonl(data / "preference.train.jsonl")
    rows[3]["chosen"], rows[3]["rejected"] = rows[3]["rejected"], rows[3]["chosen"]
    write_jsonl(data / "preference.train.jsonl", rows)
    found, known = run_with(pipeline, "dpo", tmp_path / "out", data=data), used(pipeline.out("dpo"))["examples"]
    assert found["chosen"] != known["chosen"]
    assert found["rejected"] != known["rejected"]


def noted(*batches: list[EncodedSequence]) -> dict[str, Any]:
    with as_used.learning():
        for batch in batches:
            as_used.note_examples("examples", batch)
    return as_used.take_notes()


def test_order_and_labels_of_examples_count() -> None:
    assert noted([FIRST], [SECOND]) == noted([FIRST, SECOND]) != noted([SECOND, FIRST])
    with as_used.learning():
        as_used.note_examples("examples", [FIRST, SECOND], [[True], [False, True]])
    assert as_used.take_notes() != noted([FIRST, SECOND])


def test_examples_that_are_not_learnt_do_not_count() -> None:
    as_used.note_examples("examples", [FIRST])
    assert as_used.take_notes() == {}


def test_a_resumed_run_notes_what_an_uninterrupted_one_notes() -> None:
    whole = noted([FIRST], [SECOND])
    with as_used.learning():
        as_used.note_examples("examples", [FIRST])
    saved = as_used.notes_so_far()
    as_used.note_sampling("answers", Sampling(8))
    as_used.restore(saved)
    with as_used.learning():
        as_used.note_examples("examples", [SECOND])
    assert as_used.take_notes() == whole | {"sampling": {"answers": [{"max_new_tokens": 8} | DEFAULTS]}}


DEFAULTS = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}


def test_a_fingerprint_has_examples_of_data_and_not_those_that_a_model_made(pipeline: Pipeline) -> None:
    learnt = fingerprint(pipeline.out("reward_model"), pipeline.root).used
    assert {"examples/chosen", "examples/rejected", "examples/steps", "training/settings"} == set(learnt)
    made = fingerprint(pipeline.out("generative_reward_model"), pipeline.root).used
    assert set(made) == {"sampling/corrections", "training/settings"}


def test_what_was_used_must_be_equal_where_the_reference_says_it() -> None:
    reference = Fingerprint("samples", 1, {}, used={"sampling/samples": "0.7", "training/settings": "a"})
    words = "must be equal on any machine and differs"
    other = replace(reference, used=dict(reference.used) | {"sampling/samples": "0.8"})
    assert verify.compare("samples", reference, other, {}).beyond == [f"used/sampling/samples {words}"]
    lost = verify.compare("samples", reference, replace(reference, used={}), {}).beyond
    assert sorted(lost) == [f"used/{name} {words}" for name in reference.used]
    assert verify.compare("samples", replace(reference, used={}), other, {}).beyond == []
    learnt = replace(reference, used=dict(reference.used) | {"examples/steps": "ab"})
    assert verify.compare("samples", learnt, reference, {}).beyond == [], "its inputs may not be there"


def test_a_reference_keeps_what_was_used() -> None:
    one = Fingerprint("samples", 1, {}, used={"sampling/samples": "0.7"})
    assert Fingerprint.from_json(one.to_json()) == one
    older = {name: value for name, value in one.to_json().items() if name != "used"}
    assert Fingerprint.from_json(older).used == {}
