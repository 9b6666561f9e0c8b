"""Stage `tokenizer`: a byte-level BPE trained on the prepared data, or one from a local folder or hub id."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rlhf_core.data.templates import chat_template
from rlhf_core.data.tokenizers import add_pad_token, check_padding, train_byte_level_bpe
from rlhf_core.models.loading import load_tokenizer
from tasks.params.backbone import TokenizerSpec
from tasks.running.artifacts import read_json, read_jsonl, write_json
from tasks.running.stage import PageEntry, stage

VERSION = 1


def make_tokenizer(
    spec: Annotated[TokenizerSpec, PageEntry("tokenizer spec (YAML)")], data: Path, result: Path
) -> None:
    """Trains or loads the tokenizer that a spec describes and checks it against the chat template."""
    template = chat_template(read_json(data / "data.json")["template"])
    if spec.vocabulary is None:
        tokenizer = load_tokenizer(str(spec.source))
        add_pad_token(tokenizer, template)
    else:
        rows = read_jsonl(data / "sft.jsonl")
        texts = [text for row in rows for text in (row["prompt"], row["response"])]
        for name, fields in (("preference.train", ("chosen", "rejected")), ("texts", ("text",))):
            if (data / f"{name}.jsonl").exists():
                texts += [row[field] for row in read_jsonl(data / f"{name}.jsonl") for field in fields]
        tokenizer = train_byte_level_bpe(texts, spec.vocabulary, full_byte_alphabet=spec.full_byte_alphabet)
    check_padding(tokenizer, template)
    template.check_tokenizer(tokenizer)
    tokenizer.save_pretrained(result)
    write_json(result / "metrics.json", {"vocabulary": len(tokenizer)})


main = stage(make_tokenizer, models=False)
