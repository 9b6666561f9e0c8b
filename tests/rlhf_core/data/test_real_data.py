"""Every real data file passes its schema, but for faults that are known and are faults of the data."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_core.data.dialogue import parse_dialogue, render_dialogue
from rlhf_core.data.quarantine import Screening
from rlhf_core.data.schemas import record_type
from rlhf_core.data.sources import DirectorySource
from rlhf_core.errors import DataError

# Pairs whose responses are the same text, apart from white space around it at most, and responses that are one
# zero-width space.
KNOWN_FAULTS = {
    "alpaca_pref.train": {"rejected: empty": 1},
    "alpaca_pref.test": {"rejected: empty": 1, "rejected: identical responses": 1},
    "autoj.test": {"rejected: empty": 1, "rejected: identical responses": 1},
    "judgebench.test": {"rejected: identical responses": 1},
    "llmbar.test": {"rejected: identical responses": 1},
}
# Demonstrations of a multiple-choice prompt have their answer as the only choice: nothing to score, so the file is
# refused as a set of questions.
DEMONSTRATIONS = {"truthfulqa.train"}
KINDS = {
    "hh_helpful": "preference",
    "alpaca_eval": "benchmark",
    "alpaca_eval_outputs": "model_output",
    "qa_feedback": "feedback",
    "gsm8k": "question",
    "wmt_es_en": "translation",
    "ewt_sentences": "sentences",
    "humaneval": "code",
}


def test_every_file_passes_its_schema(real_data: Path, tmp_path: Path) -> None:
    source = DirectorySource(real_data, Screening(tmp_path))
    found = {}
    for name, splits in source.available().items():
        for split in splits:
            if f"{name}.{split}" in DEMONSTRATIONS:
                with pytest.raises(DataError, match="field 'choices': not two or more texts"):
                    source.load(name, split, KINDS.get(name))
                continue
            source.load(name, split, KINDS.get(name))
            if source.summaries[-1].quarantined:
                found[f"{name}.{split}"] = source.summaries[-1].reasons
    assert found == {key: value for key, value in KNOWN_FAULTS.items() if key.split(".")[0] in source.available()}
    assert len(source.summaries) >= 1


def test_real_dialogues_parse_into_turns_that_end_with_the_user(real_data: Path) -> None:
    for name in ("hh_helpful", "hh_harmless"):
        rows = DirectorySource(real_data, Screening(max_bad_share=0)).load(
            name, "train", record_type("preference").name
        )
        parsed = [parse_dialogue(row["prompt"]) for row in rows]
        assert all(messages[-1]["role"] == "user" for messages in parsed)
        assert sum(len(messages) > 1 for messages in parsed) > len(rows) / 2
        squeezed = [
            "".join(render_dialogue(messages).split()) == "".join(row["prompt"].split())
            for messages, row in zip(parsed, rows, strict=True)
        ]
        assert all(squeezed)
