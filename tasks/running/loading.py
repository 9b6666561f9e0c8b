"""Loading what upstream stages wrote: data, tokenizer with template, policies, judges."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.data.encoding import EncodedSequence, Encoder, Limits
from rlhf_core.data.templates import chat_template
from rlhf_core.data.tokenizers import check_padding
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.loading import load_language_model, load_tokenizer
from rlhf_core.models.policy import Policy, policy_of
from rlhf_core.segmentation.segmenters import SEGMENTERS, build_segmenter, segmenter_class
from rlhf_core.segmentation.segments import Segmenter
from rlhf_core.typed import typed
from tasks.running.artifacts import read_json, read_object
from tasks.running.machine import device

if TYPE_CHECKING:
    from rlhf_core.evaluation.judges.templates import Judge
    from rlhf_core.testbed import GoldWorld


def load_encoder(data: Path, tokenizer_folder: Path) -> Encoder:
    """Returns the encoder of a data set; refuses a pad token that would mask real tokens."""
    facts = read_object(data / "data.json")
    template = chat_template(facts["template"])
    tokenizer = load_tokenizer(tokenizer_folder)
    try:
        check_padding(tokenizer, template)
    except RecipeError as error:
        raise RecipeError(f"{tokenizer_folder}: {error}") from None
    return Encoder(tokenizer, template, typed(Limits, facts["limits"], f"{data / 'data.json'}: limits"))


def encode(encoder: Encoder, rows: Sequence[Mapping[str, Any]], field: str, file: Path) -> list[EncodedSequence]:
    """Returns the prompt and response (`field`) of every row.

    Raises:
        DataError: names file and row of what cannot be encoded, such as a prompt beyond a strict cap.
    """
    sequences = []
    for number, row in enumerate(rows, start=1):
        try:
            sequences.append(encoder.sequence(row, row[field]))
        except DataError as error:
            raise DataError(error.problem, file=str(file), row=number, field=error.field, remedy=error.remedy) from None
    return sequences


def load_segmenter(spec: Mapping[str, Any], folder: Path | None) -> Segmenter:
    """Returns a segmenter; where the `segmenter` stage makes its model, the one that the stage made.

    Args:
        spec: `{kind: sat, model: sat-3l}` and the like, entropy cutoffs in nats.
        folder: result of `segmenter`.

    Raises:
        RecipeError: a segmenter of the stage without its result, or with options that the stage's spec holds.
    """
    if not hasattr(segmenter_class(spec), "of_stage"):
        return build_segmenter(spec)
    if set(spec) != {"kind", "model"}:
        raise RecipeError(
            f"segmenter '{spec['kind']}' takes 'model', an entry of the scale's segmenters.yaml, the recipe gives "
            f"{sorted(spec)}; set the other options in that entry"
        )
    if folder is None:
        raise RecipeError(f"the segmenter '{spec['model']}' is made by the stage `segmenter`: give --sentences")
    made: Segmenter = SEGMENTERS[spec["kind"]].of_stage(folder)
    return made


def load_policy(model_folder: Path, encoder: Encoder) -> Policy:
    """Returns a saved model as a policy, on the stage's device."""
    model = load_language_model(model_folder).to(device())  # type: ignore[arg-type]
    return policy_of(model, pad_id=encoder.pad_id, eos_id=encoder.eos_id)


def load_world(data: Path) -> GoldWorld | None:
    """Returns the world behind a testbed data set, None for real data and for questions, which know their answers."""
    facts = read_json(data / "data.json")
    world = facts.get("world")
    if world is not None and facts["source"] == "testbed":
        from rlhf_core.testbed import Dials, World

        dials = typed(Dials, world.get("dials", {}), f"{data / 'data.json'}: world.dials")
        return World(world["seed"], dials=dials)
    if world is not None and facts["source"] == "testbed-longform":
        from rlhf_core.testbed.longform import LongFormWorld

        return LongFormWorld(world["seed"])
    if world is not None and facts["source"] == "testbed-translation":
        from rlhf_core.testbed.translation import TranslationWorld

        return TranslationWorld(world["seed"])
    return None


def load_judge(spec: Mapping[str, Any] | None, world: GoldWorld | None) -> Judge | None:
    """Returns the judge of an evaluation spec.

    `{kind: gold, persona: exact}` needs the testbed's world; `{kind: endpoint, ...}` is any OpenAI-compatible
    endpoint and takes the fields of `EndpointConfig`. Its `base_url`, `model` and `cache_path` may name environment
    variables as `${NAME}`. None leaves judged metrics out.

    Raises:
        RecipeError: an unknown kind or field, a gold judge without its world, an environment variable that is not set.
        JudgeError: an invalid address, or a missing key.
    """
    if spec is None:
        return None
    from rlhf_core.evaluation.judges.choices import JUDGES

    kind = JUDGES.kind_of(spec)
    hint = "set it, or set the evaluation's judge to null to leave judged metrics out"
    given = {name: expanded(f"judge: '{name}'", value, hint) for name, value in spec.items() if name != "kind"}
    judge: Judge = typed(JUDGES[kind], given, "judge").judge(world)
    return judge


_VARIABLE = re.compile(r"\$\{(\w+)\}")


def expanded(where: str, value: Any, hint: str = "set it") -> Any:
    """Returns a text with each `${NAME}` replaced by that environment variable's value; other values as they are.

    Raises:
        RecipeError: a variable that is not set, with `where` it is read and a `hint`.
    """
    if not isinstance(value, str):
        return value
    for variable in _VARIABLE.findall(value):
        if not os.environ.get(variable):
            raise RecipeError(f"{where} reads the environment variable {variable}, which is not set; {hint}")
    return _VARIABLE.sub(lambda match: os.environ[match[1]], value)
