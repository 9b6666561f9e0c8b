"""The process that runs vLLM: takes weights and prompts from a trainer, gives responses. Runs in vLLM's environment.

Where this differs from `LLM.generate`:

1. A token is chosen as the loop chooses it, by the uniform number of its row and step; a logits processor leaves no
   other token to choose. A response depends neither on the other rows nor on vLLM's own random generators.
2. The model is built without weights. They come from the trainer, under the names of its own modules, and replace
   those that vLLM computes with in place.
3. Prompts of a batch share the cache of their beginnings, which is emptied before each batch: the weights may be new,
   and a response would depend on earlier batches in its last bits.

The process ends with its trainer: its standard input is a pipe that the trainer holds open.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from safetensors import safe_open
from torch import Tensor
from vllm import LLM, SamplingParams
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.v1.sample.logits_processor import LogitsProcessor, process_dict_updates

from rlhf_core.models.choosing import choose, measure
from rlhf_core.models.vllm.messages import ConnectionEnded, receive, send

Reply = tuple[dict[str, Any], dict[str, Tensor]]


class VllmChooser(LogitsProcessor):
    """Chooses every token by `uniforms`, and notes its log-probability and its distribution's entropy.

    All three are [rows, max_new_tokens] of the requests that run, on the device of the logits.
    """

    device: ClassVar[torch.device]
    uniforms: ClassVar[Tensor]
    logprobs: ClassVar[Tensor]
    entropies: ClassVar[Tensor]
    sampling: ClassVar[Any]

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        type(self).device, self.pinned = device, is_pin_memory
        #: row and tokens so far of the requests, by their index in the batch; vLLM appends to the tokens
        self.requests: dict[int, tuple[int, list[int]]] = {}

    @classmethod
    def begin(cls, uniforms: Tensor, sampling: Any) -> None:
        cls.uniforms, cls.sampling = uniforms.to(cls.device), sampling
        cls.logprobs, cls.entropies = torch.zeros_like(cls.uniforms), torch.zeros_like(cls.uniforms)

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        process_dict_updates(
            self.requests, batch_update, lambda params, prompt, output: (int(params.extra_args["row"]), output)
        )

    def apply(self, logits: Tensor) -> Tensor:
        """Returns [requests, vocabulary] logits of which only the chosen token's is finite."""
        places = [(row, len(output)) for row, output in (self.requests[index] for index in range(logits.shape[0]))]
        here = torch.tensor(places, pin_memory=self.pinned).to(logits.device, non_blocking=True).unbind(dim=1)
        chosen = choose(logits, self.uniforms[here], self.sampling)
        self.logprobs[here], self.entropies[here] = measure(logits, chosen)
        return torch.full_like(logits, -torch.inf).scatter(1, chosen[:, None], 0.0)


class TakesWeights:
    """Extension of vLLM's worker, which calls the methods in the process that holds the model."""

    model_runner: Any

    def take_weights(self, path: str) -> list[str]:
        """Replaces the weights by those of a file; returns the parameters that it did not have."""
        model = self.model_runner.get_model()
        load, seen = model.load_weights, set[str]()

        def noted(weights: Any) -> set[str]:
            found: set[str] = load(weights)
            seen.update(found)
            return found

        model.load_weights = noted
        try:
            self.model_runner.reload_weights(weights_iterator=_stored(path))
        finally:
            del model.load_weights
        for module in model.modules():
            # a head that shares the embedding's weights keeps, on CPUs, a packed copy that reloading does not renew
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
        return sorted({name for name, _ in model.named_parameters()} - seen)


def _stored(path: str) -> Iterator[tuple[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (not a mapping)
            yield name, file.get_tensor(name)


class VllmServer:
    """Answers to a trainer's requests, each a method of the name that it has in the field `do`."""

    def __init__(self) -> None:
        self.llm: Any = None
        self.sleeps = False

    def start(self, given: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Reply:
        """Builds the model, without weights."""
        self.sleeps = bool(given["sleep"])
        self.llm = LLM(
            model=given["model"],
            dtype=given["dtype"],
            max_model_len=given["longest"],
            kv_cache_memory_bytes=given["cache_bytes"],
            max_num_seqs=given["requests"],
            enforce_eager=given["eager"],
            enable_sleep_mode=self.sleeps,
            gpu_memory_utilization=0.05,  # of what the cache and the weights do not say themselves
            load_format="dummy",
            skip_tokenizer_init=True,
            generation_config="vllm",
            enable_prefix_caching=True,
            async_scheduling=False,
            logits_processors=[VllmChooser],
            worker_extension_cls=f"{TakesWeights.__module__}.{TakesWeights.__qualname__}",
            seed=0,
            disable_log_stats=True,
        )
        return {}, {}

    def load(self, given: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Reply:
        """Takes the weights of a file."""
        self._wake()
        (missing,) = self.llm.collective_rpc("take_weights", args=(given["file"],))
        if missing:
            raise ValueError(f"the trainer's weights lack what vLLM calls {', '.join(missing[:5])}")
        return {}, {}

    def sample(self, given: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Reply:
        """Samples a response to each prompt."""
        self._wake()
        if self.llm.reset_prefix_cache() is False:
            raise RuntimeError("vLLM did not empty the cache of an earlier batch")
        uniforms, prompts = tensors["uniforms"], given["prompts"]
        VllmChooser.begin(uniforms, SimpleNamespace(**given["sampling"]))
        outputs = self.llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            [
                SamplingParams(
                    temperature=0.0,
                    max_tokens=uniforms.shape[1],
                    stop_token_ids=[given["eos_id"]],
                    ignore_eos=True,
                    detokenize=False,
                    extra_args={"row": row},
                )
                for row in range(len(prompts))
            ],
            use_tqdm=False,
        )
        if self.sleeps:
            self.llm.sleep(level=1)
        responses = [list(output.outputs[0].token_ids) for output in outputs]
        return {"responses": responses}, {"logprobs": VllmChooser.logprobs, "entropies": VllmChooser.entropies}

    def _wake(self) -> None:
        if self.sleeps and self.llm.llm_engine.is_sleeping():
            self.llm.wake_up()

    def answer(self, given: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Reply:
        """Returns the reply to a request; an error is a reply, too."""
        asked: dict[str, Callable[[Mapping[str, Any], Mapping[str, Tensor]], Reply]]
        asked = {"start": self.start, "load": self.load, "sample": self.sample}
        try:
            return asked[given["do"]](given, tensors)
        except Exception as error:
            traceback.print_exc()
            return {"error": f"{type(error).__name__}: {error}"}, {}


def end(folder: Path) -> None:
    """Ends this process and removes its folder."""
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def end_with_trainer(folder: Path) -> None:
    """Ends this process when its trainer does, also while it samples."""

    def wait() -> None:
        sys.stdin.buffer.read()
        end(folder)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    """Serves the trainer at the other end of the connection whose number is the first argument."""
    channel, folder, server = Connection(int(sys.argv[1])), Path(sys.argv[2]), VllmServer()
    end_with_trainer(folder)
    while True:
        try:
            request = receive(channel)
            send(channel, *server.answer(*request))
        except ConnectionEnded:
            end(folder)


if __name__ == "__main__":
    main()
