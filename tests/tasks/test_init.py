"""`rewardsmith init`: a project of a model, pairs and a reward; everything is checked before anything is written."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main
from safetensors.torch import load, save
from transformers import LlamaConfig

from rlhf_core.errors import DataError, NumericsError, RecipeError, RewardsmithError
from rlhf_core.models.device import CPU, Device
from tasks.command_line import commands
from tasks.commands.init import gathered_pairs, make_project, parse_columns
from tasks.commands.project_sizes import project_sizes
from tasks.commands.run_app import print_unread
from tasks.graph.check import check_all, check_rows
from tasks.graph.dvc_files import resources
from tasks.graph.matrix import build
from tasks.graph.names import known_scale
from tasks.graph.stages import Stage
from tests.tiny_causal import save_causal, save_chat

PAIRS = [{"prompt": f"Why {n}?", "chosen": f"So {n}.", "rejected": "No."} for n in range(30)]
REWARDS = """
from started_lengths import lengths

def brevity(batch):
    return -lengths(batch)

def by_token(batch):
    return batch.responses.mask.float()

def nan(batch):
    return lengths(batch) * float("nan")
"""
#: Files of a project with such a reward, which comes with what it imports.
FILES = [
    ".dvcignore", ".gitignore", "data/pairs.test.jsonl", "data/pairs.train.jsonl", "dvc.yaml", "params.yaml",
    "params/mine/reward_models.yaml", "params/mine/rows.yaml", "params/mine/selections.yaml",
    *(f"params/scales/local/{page}.yaml" for page in (
        "aspects", "backbones", "data", "evaluation", "policy", "stages", "tokenizers")),
    "pipelines/local/mine/dvc.yaml", "pipelines/local/shared/dvc.yaml", "started_lengths.py", "started_rewards.py",
]  # fmt: skip
#: A model of half a billion parameters, as Qwen2.5-0.5B.
HALF_BILLION = LlamaConfig(
    vocab_size=151_936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
    num_key_value_heads=2, max_position_embeddings=32_768, tie_word_embeddings=True,
)  # fmt: skip


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, pairs and rewards, in which a user runs commands."""
    save_chat(tmp_path / "model")
    write(tmp_path / "pairs.jsonl", PAIRS)
    (tmp_path / "started_rewards.py").write_text(REWARDS)
    (tmp_path / "started_lengths.py").write_text("def lengths(batch):\n    return batch.responses.lengths.float()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("started_rewards", "started_lengths"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def make(folder: Path, name: str = "mine", device: Device = CPU, **changes: Any) -> None:
    given = {"model": str(folder / "model"), "files": (folder / "pairs.jsonl",), "device": device, **changes}
    make_project(folder / name, **given)


def names_of_rows(root: Path, name: str) -> set[str]:
    graph = build(root)[Path("pipelines/local") / name]
    return {item.name for item in graph.items() if item.module == "policy"}


def test_a_project_with_a_reward_has_three_rows_that_pass_every_check(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make(folder, reward="started_rewards:brevity")
    root, shown = folder / "mine", capsys.readouterr().out
    assert names_of_rows(root, "mine") == {"own", "learned", "both"}
    check_all(root)
    assert {needs["gpus"] for needs in resources(root, "local").values()} == {0}, "there is no GPU"
    assert check_rows(root, "mine", ["own", "learned", "both"], "local") == []
    assert (root / "started_rewards.py").read_text() == REWARDS
    files = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    assert sorted(file.as_posix() for file in files if file.parts[0] not in (".git", ".dvc", "__pycache__")) == FILES
    assert "reward_model-mine-pairs-0" in (root / "pipelines/local/mine/dvc.yaml").read_text()
    assert [(root / name).exists() for name in (".git", ".dvc")] == [True, True]
    assert "rewardsmith run mine --seed 0" in shown
    assert "rewardsmith compare mine/learned mine/own mine/both" in shown
    assert "27 pairs to train on, 3 held out" in shown
    monkeypatch.chdir(root)
    assert known_scale("testbed") == "local", "the only scale of the tree"
    rehearse = typer.main.get_group(commands).commands["rehearse"]
    assert rehearse.make_context("rehearse", ["mine"]).params["scale"] == "local"
    with pytest.raises(RecipeError, match="unknown scale 'small'; known: local"):
        known_scale("small")


def test_a_project_without_a_reward_compares_the_learned_one_with_par_and_dpo(folder: Path) -> None:
    make(folder, device=Device("a GPU", 24.0, bf16=True, count=1))
    root = folder / "mine"
    assert names_of_rows(root, "mine") == {"learned", "par", "dpo"}
    check_all(root)
    assert "precision" not in (root / "params/scales/local/backbones.yaml").read_text(), "the device's, where it runs"
    needs = resources(root, "local")
    assert [needs[stage]["gpus"] for stage in ("prepare", "reward_model", "policy")] == [0, 1, 1]


def test_a_reward_of_each_token_is_paid_as_it_is(folder: Path) -> None:
    make(folder, reward="started_rewards:by_token")
    rows = (folder / "mine/params/mine/rows.yaml").read_text()
    assert 'function: "started_rewards:by_token", gives: tokens, credit: as_is' in rows
    assert check_rows(folder / "mine", "mine", ["own", "both"], "local") == []


def changed(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    """Changes a file of the model."""
    return lambda folder: (folder / "model" / name).write_bytes(change((folder / "model" / name).read_bytes()))


def renamed(name: str, to: str = "gone") -> Callable[[Path], Any]:
    """Renames a file of the model."""
    return lambda folder: (folder / "model" / name).rename(folder / "model" / to)


def with_config(**fields: Any) -> Callable[[Path], Any]:
    """Changes fields of the model's configuration."""
    return changed("config.json", lambda content: json.dumps({**json.loads(content), **fields}).encode())


def lacking_one(content: bytes) -> bytes:
    """The weights without those of the head."""
    weights = load(content)
    del weights["lm_head.weight"]
    return save(weights, {"format": "pt"})


def without_template(folder: Path) -> None:
    shutil.rmtree(folder / "model")
    save_causal(folder / "model")


WEIGHTS = "model.safetensors"
OWN_CODE = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
#: Mistakes: a change of the folder, changed arguments, the error, and a pattern of its message.
WRONG: dict[str, tuple[Callable[[Path], Any] | None, dict[str, Any], type[RewardsmithError], str]] = {
    "no tokenizer": (
        lambda folder: [file.unlink() for file in (folder / "model").glob("tokenizer*")], {}, DataError,
        "the model folder has no tokenizer",
    ),
    "no weights": (renamed(WEIGHTS), {}, DataError, r"the model folder has no weights \(\*.safetensors\)"),
    "pickled weights": (
        renamed(WEIGHTS, "pytorch_model.bin"), {}, DataError, r"no weights .* Pickled .* convert them once",
    ),
    "GGUF": (renamed(WEIGHTS, "model.gguf"), {}, DataError, "no weights .* give the model from which it was"),
    "cut weights": (
        changed(WEIGHTS, lambda content: content[:-100]), {}, DataError, "the weights cannot be read .*incomplete",
    ),
    "missing weights": (
        changed(WEIGHTS, lacking_one), {}, DataError, "lack 1 weights of the model, .* first 'lm_head.weight'",
    ),
    "weights of another size": (with_config(intermediate_size=64), {}, DataError, "or have them in another size"),
    "no language model": (
        with_config(model_type="vit", architectures=None), {}, DataError, "no language model can be loaded",
    ),
    "a classifier": (
        with_config(architectures=["LlamaForSequenceClassification"]), {}, RecipeError, "is a LlamaForSeq.*, not a",
    ),
    "quantised weights": (
        with_config(quantization_config={"quant_method": "gptq", "bits": 4}), {}, RecipeError, r"quantised .*\(gptq\)",
    ),
    "code of its own": (
        with_config(model_type="mine", auto_map=OWN_CODE), {}, DataError, "Code from the hub is never run",
    ),
    "no chat template": (without_template, {}, RecipeError, "has no chat template; .*--template llama3"),
    "broken chat template": (
        lambda folder: (folder / "model" / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }"),
        {}, RecipeError, "chat template is not valid Jinja",
    ),
    "no model": (None, {"model": "./elsewhere"}, DataError, "the model folder has no configuration"),
    "unknown on the hub": (None, {"model": "nobody/nothing"}, DataError, "or a hub id with HF_HUB_OFFLINE=0"),
    "a folder of pairs": (None, {"files": (Path("model"),)}, DataError, "file model: is a folder"),
    "another template": (None, {"template": "llama3"}, RecipeError, "the tokenizer has no token"),
    "unknown template": (None, {"template": "lama"}, RecipeError, "unknown chat template 'lama'"),
    "no file": (None, {"files": (Path("nowhere.jsonl"),)}, DataError, "nowhere.jsonl: no such file"),
    "reward of NaN": (None, {"reward": "started_rewards:nan"}, NumericsError, "response 0 .* is not finite"),
    "a folder that exists": (None, {"name": "model"}, RecipeError, "exists; init makes a new folder"),
    "a bad name": (None, {"name": "my.study"}, RecipeError, "it has letters, digits"),
    "a paper's name": (None, {"name": "par"}, RecipeError, "the package uses"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_one_message_before_anything_is_written(folder: Path, wrong: str) -> None:
    change, given, error, message = WRONG[wrong]
    if change is not None:
        change(folder)
    before = sorted(folder.iterdir())
    with pytest.raises(error, match=message) as raised:
        make(folder, **given)
    assert len(str(raised.value).splitlines()) == 1
    assert [path for path in sorted(folder.iterdir()) if path.name != "__pycache__"] == before


def test_a_dialogue_that_the_template_refuses_is_named_wherever_it_is(folder: Path) -> None:
    config = json.loads((folder / "model" / "tokenizer_config.json").read_text())
    template = folder / "model" / "chat_template.jinja"
    own = template.read_text() if template.exists() else config["chat_template"]
    template.write_text(f"{{% if messages | length > 2 %}}{{{{ raise_exception('two answers') }}}}{{% endif %}}{own}")
    odd = {name: f"Human: Why?\n\nAssistant: So.\n\nAssistant: Yes.\n\nHuman: Who?\n\nAssistant: {name}"
           for name in ("chosen", "rejected")}  # fmt: skip
    plain = [{name: f"Human: {row['prompt']}\n\nAssistant: {row[name]}" for name in odd} for row in PAIRS]
    write(folder / "pairs.jsonl", [*plain, odd])
    with pytest.raises(DataError, match=r"row pairs-000031: .* refuses the dialogue \(two answers"):
        make(folder)
    assert not (folder / "mine").exists()


def test_bad_rows_are_left_out_with_a_reason(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "pairs.jsonl", [*PAIRS, {"prompt": "Why?", "chosen": "Same.", "rejected": "Same."}])
    make(folder)
    [bad] = [json.loads(line) for line in (folder / "mine/data/quarantine/pairs.jsonl.quarantine.jsonl").open()]
    assert bad["row"] == 31
    assert "1 rows left out" in capsys.readouterr().out


def test_columns_that_are_not_read_and_an_overlap_are_told_by_init_and_plan(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "pairs.jsonl", [{**row, "messages": [], "annotator": "x"} for row in PAIRS])
    write(folder / "pairs.test.jsonl", [{**row, "chosen": "Therefore."} for row in PAIRS[:3]])
    make(folder, files=(folder / "pairs.jsonl", folder / "pairs.test.jsonl"))
    shown = capsys.readouterr().out
    assert f"unread  {folder}/pairs.jsonl: messages, annotator\n" in shown
    assert "overlap 3 of 3 held-out pairs ask prompts that are trained on\n" in shown
    monkeypatch.chdir(folder / "mine")
    prepare = Stage("prepare", "prepare", "shared", "pairs", 0, "python -m tasks.prepare --spec "
                    "params/scales/local/data.yaml:pairs --out x", (), (), "run", (), {})  # fmt: skip
    print_unread([prepare])
    said = "params/scales/local/data.yaml:pairs: columns that are not read: messages, annotator\n"
    assert capsys.readouterr().out == said


def test_a_file_of_many_bad_rows_is_refused(folder: Path) -> None:
    broken = [{**row, "chosen": " "} for row in PAIRS[:4]]
    file = write(folder / "pairs.jsonl", [*PAIRS[4:], *broken])
    with pytest.raises(DataError, match=r"row 27, field 'chosen': .*4 of 30 rows are not pairs as 'texts' has them"):
        gathered_pairs([file], {})
    with pytest.raises(DataError, match="9 pairs to train on beside 1 held out"):
        gathered_pairs([write(folder / "few.jsonl", PAIRS[:10])], {})


def test_prompts_under_an_unknown_name_are_asked_for_by_the_columns_found(folder: Path) -> None:
    rows = [{"ask": row["prompt"], "id": row["chosen"], "chosen": "Yes.", "rejected": "No."} for row in PAIRS]
    file = write(folder / "asked.jsonl", rows)
    with pytest.raises(DataError, match=r"other columns are ask, id: name .* by --column prompt=NAME") as raised:
        gathered_pairs([file], {})
    assert len(str(raised.value).splitlines()) == 1
    assert len(gathered_pairs([file], {"prompt": "ask"}).train) == 27
    bare = write(folder / "bare.jsonl", [{name: row[name] for name in ("chosen", "rejected")} for row in rows])
    with pytest.raises(DataError, match="there is no other column"):
        gathered_pairs([bare], {})


def test_files_of_held_out_pairs_are_told_by_their_names_and_ids_stay_apart(folder: Path) -> None:
    rows = [{**row, "id": str(number)} for number, row in enumerate(PAIRS)]
    files = [write(folder / name, rows) for name in ("a.jsonl", "b.jsonl", "a.test.jsonl")]
    pairs = gathered_pairs(files, {})
    assert (len(pairs.train), len(pairs.test)) == (60, 30)
    assert len({row["id"] for row in (*pairs.train, *pairs.test)}) == 90


def test_columns_are_stated_as_ours_and_theirs() -> None:
    assert parse_columns(["chosen=better", "prompt=q"]) == {"chosen": "better", "prompt": "q"}
    for text, said in (("chosen", "write it as chosen=their_name"), ("choosen=better", "did you mean 'chosen'")):
        with pytest.raises(RecipeError, match=said):
            parse_columns([text])


def test_sizes_follow_from_model_and_device() -> None:
    small, large = Device("A10G", 24.0, bf16=True, count=1), Device("H100", 80.0, bf16=True, count=8)
    parameters = 494_000_000
    sizes = {device: project_sizes(HALF_BILLION, parameters, device) for device in (small, large, CPU)}
    assert [sizes[device]["gpus"] for device in (small, large, CPU)] == [1, 1, 0]
    assert sizes[small]["microbatch"] < sizes[large]["microbatch"]
    assert sizes[CPU]["iterations"] < sizes[small]["iterations"]
    for each in sizes.values():
        assert each["rollout_batch"] % each["group_size"] == 0
        assert each["prompts"] == each["iterations"] * each["rollout_batch"] // each["group_size"]
        assert each["answer_tokens"] + each["prompt_tokens"] <= each["total_tokens"]
    billions = project_sizes(HALF_BILLION, 8_000_000_000, small)
    assert billions["microbatch"] == 1
    assert float(project_sizes(HALF_BILLION, 10_000, CPU)["policy_lr"]) > float(sizes[CPU]["policy_lr"])
