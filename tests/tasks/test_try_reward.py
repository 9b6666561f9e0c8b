"""`rewardsmith try-reward`: a reward function on a few rollouts, refused with one message where it is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rlhf_core.data.templates import chat_template
from rlhf_core.data.tokenizers import add_pad_token
from rlhf_core.errors import RecipeError
from rlhf_core.models.loading import load_tokenizer
from tasks.commands.try_reward import print_tried_reward, statistics_line
from tasks.scoring.texts import TriedReward
from tests.tiny_causal import save_chat

#: Rewards as a user may write them; the module has a name that no other test imports.
REWARDS = """
import torch

def brevity(batch):
    return -batch.responses.lengths.float()

def by_token(batch):
    return batch.responses.mask.float()

def known(batch):
    return [row["meta"]["worth"] for row in batch.records]

def shape(batch):
    return torch.zeros(len(batch), 999)

def fails(batch):
    return batch.respones.lengths

async def asks(batch):
    return [0.0] * len(batch)

def of_trl(completions, **columns):
    return [float(len(text)) for text in completions]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with pairs and rewards, in which a user runs commands."""
    rows = [{"prompt": f"Why {n}?", "chosen": "So." * n, "rejected": "No\nnever."} for n in range(1, 9)]
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "tried_rewards.py").write_text(REWARDS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "tried_rewards", raising=False)
    return tmp_path


def tried(folder: Path, name: str, rows: int = 4) -> None:
    print_tried_reward(folder, "testbed", f"tried_rewards:{name}", rows, folder / "pairs.jsonl")


def test_it_prints_prompt_response_and_reward_in_80_columns(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tried(folder, "brevity")
    shown = capsys.readouterr().out
    assert "Why 1?" in shown
    assert "No never." in shown, "a response is one line"
    assert "gives sequence; 4 responses of pairs.jsonl" in shown
    assert "correlation with length in tokens -1.00" in shown
    assert max(map(len, shown.splitlines())) <= 80
    tried(folder, "by_token")
    assert "gives tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("shape", r"returned shape \(4, 999\); it must be \(4,\), a value for each response, or \(4, "),
        ("fails", "failed: AttributeError: .*respones.*line 17 of .*tried_rewards.py: return .*; batch.texts has"),
        ("asks", "asks is async; define it by def"),
        ("of_trl", r"takes \(completions, \*\*columns\); it gets one argument.*batch.texts has"),
        ("brevety", "module tried_rewards has no 'brevety'; did you mean 'brevity'?"),
    ],
)
def test_a_wrong_reward_is_one_message(folder: Path, name: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said) as raised:
        tried(folder, name)
    assert "\n" not in str(raised.value)


def test_rollouts_of_the_newest_policy_come_with_their_data_rows(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = folder / "results" / "testbed"
    data, policy = results / "shared" / "data" / "d" / "result", results / "my-study" / "policy" / "own" / "0"
    data.mkdir(parents=True)
    (data / "data.json").write_text(json.dumps({"template": "tokenizer", "limits": {"prompt": 32, "total": 64}}))
    prompts = [{"id": str(n), "prompt": f"{n}?", "source": "s", "meta": {"worth": n}} for n in range(3)]
    (data / "prompts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in prompts))
    words = load_tokenizer(save_chat(policy / "result" / "model"))
    add_pad_token(words, chat_template("tokenizer"))
    words.save_pretrained(policy / "result" / "model")
    rollouts = [{"id": str(n), "prompt": f"{n}?", "response": "milk " * (n + 1)} for n in range(3)]
    (policy / "result" / "rollouts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rollouts))
    (policy / "record").mkdir()
    record = {"stage": "policy", "version": 1, "inputs": {str(data): "0" * 64}}
    (policy / "record" / "record.json").write_text(json.dumps(record))
    print_tried_reward(folder, "testbed", "tried_rewards:known", 3)
    shown = capsys.readouterr().out
    assert "3 rollouts of policy own, seed 0" in shown
    assert "mean 1, standard deviation 0.8165, correlation with length in tokens +1.00" in shown


def test_a_folder_without_rollouts_and_pairs_says_what_to_give(folder: Path) -> None:
    with pytest.raises(RecipeError, match=r"no policy is in results/testbed.*--prompts"):
        print_tried_reward(folder, "testbed", "tried_rewards:brevity", 4)


def test_a_line_says_what_rewards_depend_on() -> None:
    rewards, lengths = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([3.0, 1.0, 2.0])
    assert statistics_line(TriedReward("sequence", rewards, lengths)).endswith("in tokens -0.33"), "Pearson's"
    assert "correlation" not in statistics_line(TriedReward("sequence", rewards, torch.ones(3)))
    assert "every reward is 1: " in statistics_line(TriedReward("sequence", torch.ones(3), lengths))
