"""Language models as a hub has them, checked before anything is trained with them.

A folder needs its parts and whole weights; the class must be a language model whose architecture this project samples
from and scores as transformers does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.architecture import make_tiny
from rlhf_core.models.loading import auto_class, refuse_random
from rlhf_core.models.policy import Policy, policy_of
from rlhf_core.models.response_states import start_token
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.models.sampling import Sampling, generate

#: The largest difference in nats between log-probabilities here and by transformers.
TOLERANCE = 1e-3
#: Tokens of the tiny model's vocabulary, of its prompts, and of its answers.
_WORDS, _PROMPTS, _ANSWER = 64, ((5, 6, 7, 8, 9, 10), (11, 12, 13)), 4
#: Standard deviation of its weights; of smaller ones every token would be as likely.
_DEVIATION = 0.3


def check_kind(config: PreTrainedConfig, model: str) -> None:
    """Refuses a model that is not a language model, or whose weights are quantised."""
    known = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values(), *MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values()}
    kinds: Sequence[str] = config.architectures or ()
    if kinds and not known.intersection(kinds):
        raise RecipeError(f"model {model} is a {kinds[0]}, not a language model that answers; give a ...ForCausalLM")
    if getattr(config, "text_config", None) is not None or not hasattr(config, "hidden_size"):
        raise RecipeError(
            f"model {model} (type '{config.model_type}') reads more than text; give the language model alone"
        )
    quantised = getattr(config, "quantization_config", None)
    if quantised:
        said = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
        raise RecipeError(
            f"model {model} has quantised weights ({said or 'quantization_config'}), which cannot be trained; give the "
            "model in bf16 or float32"
        )


def check_weights(folder: Path, config: PreTrainedConfig) -> None:
    """Refuses a folder whose weights are damaged, or not those of its configuration; reads no weights.

    Raises:
        DataError: names the damaged file, or weights that transformers would initialise at random.
    """
    try:
        _, loading_info = auto_class(config).from_pretrained(
            str(folder), device_map="meta", use_safetensors=True, trust_remote_code=False, output_loading_info=True,
            ignore_mismatched_sizes=True,
        )  # fmt: skip
    except (OSError, ValueError, SafetensorError) as error:
        problem = f"the weights cannot be read ({str(error).strip().splitlines()[0][:200]})"
        raise DataError(problem, file=str(folder), remedy="Download or save them again") from None
    refuse_random(loading_info, folder)


def check_architecture_runs(config: PreTrainedConfig, model: str) -> None:
    """Refuses an architecture that cannot be sampled from and scored here as transformers does.

    A tiny model of the same architecture with random weights samples answers to prompts of different lengths; their
    log-probabilities must be those of transformers, and a reward model on it must read them.
    """
    small = make_tiny(config)
    small.vocab_size, small.pad_token_id, small.bos_token_id, small.eos_token_id = _WORDS, 0, 1, 2
    small._attn_implementation = None
    for name in ("initializer_range", "init_std"):
        if hasattr(small, name):
            setattr(small, name, _DEVIATION)
    refused = f"model {model}: models of type '{config.model_type}' cannot be trained here"
    with torch.random.fork_rng(devices=[]), torch.no_grad():  # GPUs are not touched
        torch.default_generator.manual_seed(0)
        try:
            tiny = auto_class(config).from_config(small, dtype=torch.float32).eval()
            gap = _gap(tiny, policy_of(tiny, pad_id=0, eos_id=2))
        except Exception as error:  # whatever an architecture does that this project does not know
            said = str(error).strip().splitlines()
            raise RecipeError(f"{refused} ({type(error).__name__}: {said[0][:160] if said else ''})") from error
    if gap > TOLERANCE:
        raise RecipeError(
            f"{refused}: their log-probabilities differ from those of transformers, by {gap:.2g} nats in a tiny model"
        )


def _gap(model: PreTrainedModel, policy: Policy) -> float:
    """Returns the largest difference in nats between log-probabilities of sampled tokens, while they are sampled and in
    one pass, and those that transformers gives."""
    width = max(map(len, _PROMPTS))
    ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in _PROMPTS])
    mask = ids != 0
    sampling, generator = Sampling(max_new_tokens=_ANSWER), torch.Generator().manual_seed(0)
    made = generate(policy, ids, mask, sampling, generator)
    sequences = ids, mask, made.ids, made.mask
    again = policy.statistics(*sequences).logprobs
    ScalarModel.from_language_model(model)(*sequences)
    gap = 0.0
    for place, prompt in enumerate(_PROMPTS):
        answer = made.ids[place][made.mask[place]]
        asked = torch.tensor([prompt])
        if model.config.is_encoder_decoder:
            before = torch.cat([torch.tensor([start_token(model.config)]), answer[:-1]])[None]
            logits = model(input_ids=asked, decoder_input_ids=before).logits[0]
        else:
            whole = torch.cat([asked, answer[None]], dim=1)
            logits = model(input_ids=whole).logits[0, len(prompt) - 1 : -1]
        theirs = logits.float().log_softmax(dim=-1).gather(1, answer[:, None])[:, 0]
        for ours in (made.logprobs, again):
            gap = max(gap, float((ours[place][made.mask[place]] - theirs).abs().max()))
    return gap
