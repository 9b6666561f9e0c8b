"""Sampling by the continuous batching of transformers.

Where this differs from `model.generate_batch`:

1. All requests wait in the queue before the engine starts, so that seeded runs form the same batches.
2. A token is chosen as the loop chooses it, by the uniform number of its row and step. A response depends neither on
   the other rows nor on the order in which they run, and global random generators stay as they are.
3. The cache has room for every row, so that no row is computed twice. It lives for one call: the next call reads the
   weights that the policy has then.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any

import torch
from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList, PreTrainedModel
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)
from transformers.generation.continuous_batching.requests import FutureRequestState

from rlhf_core.errors import RecipeError, RewardsmithError
from rlhf_core.models.architecture import check_paged
from rlhf_core.models.choosing import choose
from rlhf_core.models.generation import Generated, sample_by_request
from rlhf_core.models.policy import Policy
from rlhf_core.models.sampling import Sampling

#: Tokens of a page of the cache: the kernels of flash attention read pages of 256.
PAGE, FLASH_PAGE = 16, 256
#: Least tokens of one forward pass; without flash attention the attention mask grows with them.
LEAST_TOKENS, LEAST_FLASH_TOKENS = 256, 8192


class Chooser(ContinuousBatchingLogitsProcessor):
    """Chooses every token, and notes its log-probability and the entropy of its distribution.

    The engine passes each token the number of its slot. Slot `row * max_new_tokens + step` holds the token of that row
    and step; the last slot takes what belongs to no row.

    Args:
        uniforms: [rows, max_new_tokens] of [0, 1), on the model's device.
        sampling: how tokens are drawn.
    """

    def __init__(self, uniforms: Tensor, sampling: Sampling) -> None:
        self.supported_kwargs, self.ignored_kwargs = {"row": int, "prompt_length": int}, ()
        self.shape, self.sampling = uniforms.shape, sampling
        self.uniforms = torch.nn.functional.pad(uniforms.flatten(), (0, 1))
        self.logprobs, self.entropies = torch.zeros_like(self.uniforms), torch.zeros_like(self.uniforms)

    @property
    def no_slot(self) -> int:
        return len(self.uniforms) - 1

    def fill_defaults(self, int32_tensor: Tensor) -> None:
        int32_tensor.fill_(self.no_slot)

    def prepare_tensor_args(self, requests_with_new_token: list[FutureRequestState]) -> Tensor:
        return torch.tensor([self._slot(request) for request in requests_with_new_token], dtype=torch.int32)

    def _slot(self, request: FutureRequestState) -> int:
        given, width = request.state.logit_processor_kwargs, self.shape[1]
        step = int(request.state.position_offset - given["prompt_length"])
        # asynchronous batches run one token beyond the end of a row
        return int(given["row"] * width + step) if step < width else self.no_slot

    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
        """Returns [tokens, vocabulary] scores of which only the chosen token's is finite."""
        slots = tensor_arg[: scores.shape[0]].long()
        chosen = choose(scores, self.uniforms[slots], self.sampling)
        log_p = scores.log_softmax(dim=-1)
        self.logprobs[slots] = log_p.gather(1, chosen[:, None]).squeeze(1)
        self.entropies[slots] = torch.special.entr(log_p.exp()).sum(dim=-1)
        return torch.full_like(scores, -torch.inf).scatter(1, chosen[:, None], 0.0)

    def per_row(self, values: Tensor) -> Tensor:
        """Returns [rows, max_new_tokens]: what has been noted of the tokens."""
        return values[:-1].view(self.shape)


def sizes(model: PreTrainedModel, lengths: Sequence[int], new_tokens: int) -> ContinuousBatchingConfig:
    """Returns the settings of an engine whose cache has room for all rows.

    Args:
        model: that samples.
        lengths: of the prompts.
        new_tokens: longest response.
    """
    flash = "flash" in str(model.config._attn_implementation)
    page = FLASH_PAGE if flash else PAGE
    pages = [ceil((length + new_tokens) / page) + 1 for length in lengths]
    return ContinuousBatchingConfig(
        page_size=page,
        num_blocks=sum(pages),
        max_batch_tokens=max(len(lengths), LEAST_FLASH_TOKENS if flash else LEAST_TOKENS),
        max_requests_per_batch=len(lengths),
        max_blocks_per_request=max(pages) + max(pages) % 2 if flash else 0,
        safety_margin=0.0,
        auto_switch_to_flash=False,
    )


@contextmanager
def ignore_older_objects() -> Iterator[None]:
    """Lets garbage collections see only what is made inside: an engine that stops collects several times, which takes a
    second among all objects of torch and transformers."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def run(model: Any, prompts: Sequence[Sequence[int]], chooser: Chooser, eos_id: int) -> list[list[int]]:
    """Returns the response to each prompt as token ids, EOS included.

    Raises:
        RewardsmithError: the engine ended without the responses.
    """
    new_tokens = chooser.sampling.max_new_tokens
    manager: Any = model.init_continuous_batching(
        GenerationConfig(do_sample=False, eos_token_id=eos_id, max_new_tokens=new_tokens),
        sizes(model, [len(prompt) for prompt in prompts], new_tokens),
    )
    manager.logit_processor = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([chooser]))
    manager.logit_processor.tensors_required = 1
    found: dict[int, list[int]] = {}
    with ignore_older_objects(), torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
        try:
            for row, prompt in enumerate(prompts):
                manager.add_request(list(prompt), request_id=str(row), row=row, prompt_length=len(prompt))
            manager.start()
            for _ in prompts:
                output = manager.get_result()
                if output is None or output.error is not None:
                    raise RewardsmithError(
                        f"engine 'batch' failed: {'it ended early' if output is None else output.error}. Sample fewer "
                        "responses at a time (generation_batch of a policy, batch of other stages), or use engine: loop"
                    )
                found[int(output.request_id)] = output.generated_tokens
        finally:
            manager.stop(block=True, hard_stop=True)
            manager.destroy()
    return [found[row] for row in range(len(prompts))]


@torch.no_grad()
def sample_in_batches(
    policy: Policy, prompt_ids: Tensor, prompt_mask: Tensor, sampling: Sampling, generator: torch.Generator
) -> Generated:
    """Samples one response per row; see `generation.generate`. Log-probabilities and entropies are the engine's."""
    model = policy.model
    try:
        check_paged(model.config.to_dict())
    except RecipeError as error:
        raise RecipeError(f"engine is 'batch', but {error}; use engine: loop") from None
    was_training = model.training

    def answer(prompts: list[list[int]], uniforms: Tensor) -> tuple[list[list[int]], Tensor, Tensor]:
        chooser = Chooser(uniforms, sampling)
        with policy.applied():
            responses = run(model, prompts, chooser, policy.eos_id)
        return responses, chooser.per_row(chooser.logprobs), chooser.per_row(chooser.entropies)

    made = sample_by_request(policy, prompt_ids, prompt_mask, sampling, generator, answer)
    model.train(was_training)
    return made
