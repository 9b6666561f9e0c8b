"""The PAR paper's path through the stages at a size of seconds: reward models that resist hacking, and policies."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.recipe import parse_recipe
from tasks import normaliser, policy, references, reward_model
from tasks.graph.rows import load_rows, row_addresses
from tasks.params.pages import Address, read_settings
from tasks.params.policy import PolicyScale
from tasks.params.scales import scale_entries
from tasks.report.figures import paper_figures
from tasks.report.outputs import ResultTree
from tests.tasks.tiny_pipeline import SETTINGS, Pipeline

ROOT = Path(__file__).resolve().parents[2]
ROWS = {name: address.under(ROOT) for name, address in row_addresses(ROOT, "par").items()}


def of_scale(scale: str, kind: str, name: str) -> Address:
    return scale_entries(ROOT, scale, kind)[name].under(ROOT)


BANDIT = {**SETTINGS["reward_model"], "segmenter": {"kind": "bandit"}}
SPECS: dict[str, dict[str, Any]] = {
    "odin": {**BANDIT, "loss": {"kind": "odin"}},
    "warm-1": {**BANDIT, "learning_rate_share": 0.6, "seed_offset": 1000},
    "warm-2": {**BANDIT, "loss": {"kind": "bradley_terry", "regularisation": 0.005}, "seed_offset": 2000},
    "warm": {"title": "WARM", "backbone": "tiny", "merge": ["warm-1", "warm-2"]},
}
SCALE: dict[str, Any] = {
    "optimiser": {
        **SETTINGS["ppo"]["optimiser"],
        "iterations": 3,
        "lr_warmup": 0.1,
        "critic": "reward_model",
        "value_target": "monte_carlo",
        "value_coef": 1.0,
        "value_clip": 0.2,
        "replay": 1,
    },
    "sampling": {"max_new_tokens": 12, "temperature": 0.9, "top_k": 50, "top_p": 0.9},
    "checkpoint_every": 1,
    "checkpoint_prompts": 3,
    "checkpoint_proxy": True,
    "peak": True,
    "rollout_samples": 2,
}


def written(path: Path, values: dict[str, Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return str(path)


def line(**arguments: Any) -> list[str]:
    words = []
    for name, value in arguments.items():
        values = value if isinstance(value, tuple) else (value,)
        words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return words


def upstream(pipeline: Pipeline) -> dict[str, Path]:
    return {"data": pipeline.result("data"), "sft": pipeline.result("sft")}


def train(pipeline: Pipeline, name: str, out: Path, members: tuple[Path, ...] = (), **changes: Any) -> Path:
    spec = written(out / "spec" / f"{name}.yaml", {**SPECS[name], **changes})
    given: dict[str, Any] = {"reward_model": members} if members else {}
    reward_model.main(
        line(
            spec=spec,
            scale=pipeline.settings("reward_model_scale"),
            seed=0,
            out=out / name,
            **upstream(pipeline),
            **given,
        )
    )
    return out / name / "result"


@pytest.fixture(scope="module")
def models(pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Results of ODIN, of two of WARM's reward models and of their average."""
    out = tmp_path_factory.mktemp("models")
    made = {name: train(pipeline, name, out) for name in ("odin", "warm-1", "warm-2")}
    return {**made, "warm": train(pipeline, "warm", out, (made["warm-1"], made["warm-2"]))}


def run_row(pipeline: Pipeline, name: str, model: Path, out: Path, **changes: Any) -> Path:
    """The committed row on a reward model, with its normaliser and references made first."""
    made: dict[str, Any] = {**upstream(pipeline), "reward_model": model}
    normaliser.main(line(scale=pipeline.settings("normaliser"), out=out / "normaliser", **made))
    references.main(line(scale=pipeline.settings("references"), seed=0, out=out / "references", **made))
    row = read_settings(ROWS[name])
    if row["shaping"][-1]["kind"] == "par":
        row["shaping"][-1]["references"] = 3
    given = {"normaliser": out / "normaliser/result", "references": out / "references/result"}
    scale = written(out / "scale.yaml", {**SCALE, **changes})
    files = {"row": written(out / "row.yaml", row), "scale": scale, "evaluation": pipeline.settings("evaluation")}
    policy.main(line(**files, **made, **given, seed=0, out=out / "policy"))
    return out / "policy"


def test_a_merge_is_measured_and_read_as_any_reward_model(models: dict[str, Path]) -> None:
    states = {name: ScalarModel.load(models[name] / "model")[0].state_dict() for name in ("warm", "warm-1", "warm-2")}
    for name, value in states["warm"].items():
        mean = (states["warm-1"][name].double() + states["warm-2"][name].double()) / 2
        assert float((value.double() - mean).abs().max()) < 1e-6
    assert ScalarModel.training_settings(models["warm"] / "model")["merge"] == ["warm-1", "warm-2"]
    assert json.loads((models["warm"] / "metrics.json").read_text()).keys() >= {"accuracy", "fidelity_pearson"}
    assert (models["warm"] / "history.jsonl").read_text() == ""


def test_members_of_a_merge_have_rates_and_seeds_of_their_own(models: dict[str, Path]) -> None:
    first, second = (
        [json.loads(row) for row in (models[name] / "history.jsonl").read_text().splitlines()]
        for name in ("warm-1", "warm-2")
    )
    assert first[-1]["learning_rate"] == pytest.approx(0.6 * second[-1]["learning_rate"])
    assert "regularisation" in second[-1]


def test_odins_row_reads_the_quality_head_and_is_measured(
    pipeline: Pipeline, models: dict[str, Path], tmp_path: Path
) -> None:
    assert ScalarModel.training_settings(models["odin"] / "model")["heads"] == ["quality", "length"]
    out = run_row(pipeline, "odin", models["odin"], tmp_path) / "result"
    metrics = json.loads((out / "metrics.json").read_text())
    assert {"proxy_reward", "preference_score", "peak_win_rate_vs_sft", "peak_mtbench", "peak_step"} <= set(metrics)
    assert metrics["loss_after_peak"] == pytest.approx(metrics["peak_win_rate_vs_sft"] - metrics["win_rate_vs_sft"])
    checkpoints = [json.loads(row) for row in (out / "checkpoints.jsonl").read_text().splitlines()]
    assert [row["step"] for row in checkpoints] == [1, 2, 3]
    assert all(0 < row["preference_score"] < 1 for row in checkpoints)
    assert checkpoints[-1]["proxy_reward"] == pytest.approx(metrics["proxy_reward"])


def test_the_saved_policy_is_the_last_one_whatever_the_best_was(
    pipeline: Pipeline, models: dict[str, Path], tmp_path: Path
) -> None:
    kept = run_row(pipeline, "par", models["warm"], tmp_path / "peak") / "result"
    plain = run_row(pipeline, "par", models["warm"], tmp_path / "plain", peak=False) / "result"
    name = "model/model.safetensors"
    assert (kept / name).read_bytes() == (plain / name).read_bytes()
    assert not (plain / "peak_generations.jsonl").exists()


def test_figures_draw_both_curves_of_a_row(pipeline: Pipeline, models: dict[str, Path], tmp_path: Path) -> None:
    out = run_row(pipeline, "par", models["warm"], tmp_path)
    place = tmp_path / "results" / "par" / "policy" / "par"
    place.mkdir(parents=True)
    out.rename(place / "0")
    found = {figure.key: figure for figure in paper_figures("par", ResultTree(tmp_path / "results", (0,)))}
    proxy, wins = found["figure-5"].panels[0].series
    assert (proxy.label, proxy.style, proxy.right) == ("PAR", "line", False)
    assert (wins.label, wins.style, wins.right) == ("PAR", "dashed", True)
    assert proxy.colour == wins.colour
    assert proxy.x == wins.x == [1, 2, 3]
    assert found["figure-6b"].panels[0].series[0].label == "PAR"
    assert [s.label for s in found["figure-4b"].panels[0].series][-1] == "sgfc"


def test_bad_merges_are_refused(pipeline: Pipeline, models: dict[str, Path], tmp_path: Path) -> None:
    make = partial(train, pipeline, "warm", tmp_path)
    with pytest.raises(RecipeError, match=r"merge names 2 reward models, but 1 result\(s\) are given"):
        make((models["warm-1"],))
    with pytest.raises(RecipeError, match="'warm-2' has heads"):
        make((models["warm-1"], models["odin"]))
    with pytest.raises(RecipeError, match="name at least two reward models, each once"):
        make((models["warm-1"],) * 2, merge=["warm-1", "warm-1"])
    with pytest.raises(RecipeError, match="the spec merges none"):
        train(pipeline, "warm-1", tmp_path, (models["warm-2"],))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate_share": 0.0}, "learning_rate_share is 0.0"),
        ({"loss": {"kind": "odin", "lenght": 1.0}}, "did you mean 'length'"),
    ],
)
def test_bad_reward_model_files_are_refused(
    pipeline: Pipeline, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        train(pipeline, "warm-1", tmp_path, **changes)


def test_odin_needs_several_pairs_at_a_time(pipeline: Pipeline, tmp_path: Path) -> None:
    spec = written(tmp_path / "odin.yaml", SPECS["odin"])
    scale = written(tmp_path / "scale.yaml", {**SETTINGS["reward_model_scale"], "microbatch": 1})
    with pytest.raises(RecipeError, match=r"microbatch is 1, .* needs at least 2 pairs"):
        reward_model.main(line(spec=spec, scale=scale, seed=0, out=tmp_path / "out", **upstream(pipeline)))


def test_a_head_that_the_model_has_not_is_refused(pipeline: Pipeline, models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(
        RecipeError, match="has no head 'reward'; state 'head' of the readout as one of quality, length"
    ):
        run_row(pipeline, "vanilla", models["odin"], tmp_path)


def test_prompts_beyond_the_references_are_refused_before_training(
    pipeline: Pipeline, models: dict[str, Path], tmp_path: Path
) -> None:
    made: dict[str, Any] = {**upstream(pipeline), "reward_model": models["warm"]}
    scale = written(tmp_path / "references.yaml", {**SETTINGS["references"], "prompts": 5})
    normaliser.main(line(scale=pipeline.settings("normaliser"), out=tmp_path / "normaliser", **made))
    references.main(line(scale=scale, seed=0, out=tmp_path / "references", **made))
    known = {"normaliser": tmp_path / "normaliser/result", "references": tmp_path / "references/result"}
    row = read_settings(ROWS["par"])
    files = {"row": written(tmp_path / "row.yaml", row), "evaluation": pipeline.settings("evaluation")}
    files["scale"] = written(tmp_path / "scale.yaml", SCALE)
    with pytest.raises(DataError, match=r"has no reference rewards; they are cached for 5 prompt.*references\.yaml"):
        policy.main(line(**files, **made, **known, seed=0, out=tmp_path / "out"))


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("grpo-minmax", "par_grpo", "shaping 'minmax' maps the rewards of a group by a*r + b"),
        ("grpo-meanstd", "par_grpo", "shaping 'meanstd' maps the rewards of a group by a*r + b"),
        ("online-dpo-par", "par_online_dpo", "shaping 'length_penalty, par' never reaches online DPO"),
        ("grpo-par", "par_grpo", ""),
        ("minmax", "par_ppo", ""),
    ],
)
def test_a_shaping_without_effect_is_named_before_anything_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, settings: str, said: str
) -> None:
    files = {"row": ROWS[name], "scale": of_scale("testbed", "policy", settings)}
    files["evaluation"] = of_scale("testbed", "evaluation", "dialogue")
    nothing = dict.fromkeys(("data", "sft", "reward_model", "normaliser", "references"), tmp_path / "nothing")
    with pytest.raises((DataError, RecipeError)):
        policy.main(line(**files, **nothing, seed=0, out=tmp_path / "out"))
    told = capsys.readouterr().err
    assert (said in told and "training is the same without it" in told) if said else "note:" not in told


def scale_of(**changes: Any) -> PolicyScale:
    return PolicyScale(**{**SCALE, **changes})


def test_a_row_may_state_multiples_of_the_scales_settings() -> None:
    config = scale_of().optimiser_config(
        {"kind": "ppo", "iterations": {"times": 2}, "critic_lr": {"times": 0.5}}, "row"
    )
    assert (config.iterations, config.critic_lr) == (6, 1.0e-3)


@pytest.mark.parametrize("given", [{"times": "two"}, {"times": 2, "plus": 1}, {"plus": 1}])
def test_other_multiples_are_refused(given: Any) -> None:
    with pytest.raises(RecipeError, match=r"row: ppo: iterations is .*\{times: 2\}"):
        scale_of().optimiser_config({"kind": "ppo", "iterations": given}, "row")
    with pytest.raises(RecipeError, match="the scale gives None"):
        scale_of().optimiser_config({"kind": "ppo", "lam": {"times": 2}}, "row")


def test_a_buffer_as_large_as_the_run_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"replay 3 with 3 iterations: .* nothing would ever be trained"):
        scale_of().optimiser_config({"kind": "ppo", "replay": 3}, "row")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": 0}, "prompts is 0"),
        ({"checkpoint_every": 0}, "checkpoint_every is 0"),
        ({"checkpoint_prompts": 0}, "set checkpoint_prompts"),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        scale_of(**changes)


def test_every_row_is_a_recipe_and_its_settings_are_an_optimisers_at_every_scale() -> None:
    rows = load_rows(ROOT, "par")
    assert len(rows) == 59
    for scale in ("testbed", "small", "paper"):
        for name, row in rows.items():
            recipe = parse_recipe(read_settings(row.path.under(ROOT)), row.path)
            stated = read_settings(of_scale(scale, "policy", row.settings))
            config = PolicyScale(**stated).optimiser_config(recipe.optimiser, f"{name} at {scale}")
            assert config.replay in (0, 4)


def test_every_way_of_a_buffer_holds_4_batches_and_ten_evaluations_make_an_epoch() -> None:
    for scale in ("testbed", "small", "paper"):
        for settings in ("par_ppo", "par_grpo", "par_online_dpo"):
            stated = read_settings(of_scale(scale, "policy", settings))
            iterations, every = stated["optimiser"]["iterations"], stated["checkpoint_every"]
            evaluated = sum(step % every == 0 or step == iterations for step in range(1, iterations + 1))
            assert evaluated == (
                20 if (scale, settings) == ("paper", "par_grpo") else 10
            )  # GRPO: two epochs as released
            if settings != "par_online_dpo":
                assert stated["optimiser"]["replay"] == 4
