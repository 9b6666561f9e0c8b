"""The trainer's side of vLLM: starts its process, hands it the weights, and starts another when it dies."""

from __future__ import annotations

import atexit
import copy
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf_core import distributed
from rlhf_core.errors import RecipeError, RewardsmithError
from rlhf_core.models.architecture import POSITIONS, field
from rlhf_core.models.generation import Generated, sample_by
from rlhf_core.models.policy import Policy, pad_rows
from rlhf_core.models.sampling import Sampling
from rlhf_core.models.vllm.environment import Installed, check_vllm, deaths, installed
from rlhf_core.models.vllm.messages import ConnectionEnded, receive, send
from rlhf_core.models.vllm.weights import checksums, hand_over_file

DEVICES_VARIABLE, SLEEP_VARIABLE = "REWARDSMITH_VLLM_GPUS", "REWARDSMITH_VLLM_SLEEP"
CACHE_VARIABLE = "REWARDSMITH_VLLM_CACHE_GB"
#: GiB of the key-value cache where the variable is not set; smaller models get less.
CACHE_GB = 4.0
#: Requests that run at a time; the others wait.
REQUESTS = 256
#: Tokens by which the longest sequence grows, so that longer prompts seldom start another process.
STEP = 2048
#: Processes that are started for one batch before the run ends.
ATTEMPTS = 3
#: Seconds within which the process is ready, or has taken new weights.
PATIENCE = 900.0
#: Beginnings of variables that the process does not see.
LEFT_OUT = (
    "PYTHON", "VIRTUAL_ENV", "REWARDSMITH_", "TORCHELASTIC_", "MASTER_", "RANK", "LOCAL_", "WORLD_", "GROUP_", "ROLE_",
)  # fmt: skip
#: Lines of the log in a message.
LAST_LINES = 12

_LOG = logging.getLogger(__name__)


class ProcessDied(Exception):
    """The vLLM process has ended."""


@dataclass(frozen=True)
class Needs:
    """Needs of a vLLM process; another one is started where they differ.

    Attributes:
        architecture: the model's configuration as JSON.
        longest: tokens of the longest prompt and response.
        dtype: of the weights, as in 'float32'.
        cache_bytes: of the key-value cache.
        threads: of the CPU.
        gpus: CUDA_VISIBLE_DEVICES of the process; empty on the CPU.
        sleep: whether it frees the GPU's memory between batches.
    """

    architecture: str
    longest: int
    dtype: str
    cache_bytes: int
    threads: int
    gpus: str
    sleep: bool


class Process:
    """A vLLM process.

    Args:
        found: the installation that it runs.
        needs, config, weight_bytes: of the model.

    Raises:
        ProcessDied: it has ended before it was ready.
        RewardsmithError: vLLM refuses the model.
    """

    def __init__(self, found: Installed, needs: Needs, config: Any, weight_bytes: int) -> None:
        self.needs = needs
        #: checksums of the weights that it has, None before it has any
        self.weights: tuple[object, ...] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="rewardsmith-vllm-", dir=memory_folder(weight_bytes)))
        self.log = self.folder / "log"
        (self.folder / "code").mkdir()
        (self.folder / "code" / "rlhf_core").symlink_to(Path(__file__).parents[2])
        config.save_pretrained(self.folder / "model")
        self.channel, theirs = Pipe()
        command = [
            str(found.python), "-P", "-m", "rlhf_core.models.vllm.server", str(theirs.fileno()), str(self.folder),
        ]  # fmt: skip
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=environment(needs, self.folder / "code"), start_new_session=True,
                pass_fds=(theirs.fileno(),), stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        theirs.close()
        fields = {"model": str(self.folder / "model"), "longest": needs.longest, "dtype": needs.dtype}
        self.ask(
            "start", fields | {"cache_bytes": needs.cache_bytes, "requests": REQUESTS, "eager": not needs.gpus,
                               "sleep": needs.sleep}
        )  # fmt: skip

    def ask(
        self,
        do: str,
        fields: Mapping[str, Any],
        tensors: Mapping[str, Tensor] | None = None,
        seconds: float | None = PATIENCE,
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Returns the reply to a request; a process that has ended, or replies with an error, is closed."""
        try:
            send(self.channel, {"do": do, **fields}, tensors)
            reply, found = receive(self.channel, seconds)
        except ConnectionEnded as error:
            words = self._last_words(str(error))
            self.close()
            raise ProcessDied(words) from None
        except BaseException:  # an interruption leaves half a message behind
            self.close()
            raise
        if "error" in reply:
            self.close()
            fewer = "sample fewer responses at a time (generation_batch of a policy, batch of other stages), or "
            raise RewardsmithError(
                f"engine 'vllm' failed to {do}: {reply['error']}; {fewer if do == 'sample' else ''}use engine: loop"
            )
        return reply, found

    def _last_words(self, problem: str) -> str:
        try:
            code: object = self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            code = None
        ended = problem if code is None else f"it ended with code {code}"
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines() if self.log.exists() else []
        return "\n  ".join([ended, *lines[-LAST_LINES:]])

    def take_weights(self, policy: Policy) -> None:
        """Hands over the policy's weights where they are not those that the process has."""
        with policy.applied():
            state = checksums(policy.model)
            if state == self.weights:
                return
            file = self.folder / "weights.safetensors"
            try:
                hand_over_file(policy.model, file)
                self.ask("load", {"file": str(file)})
            finally:
                file.unlink(missing_ok=True)
        self.weights = state

    def sample(
        self, prompts: list[list[int]], uniforms: Tensor, sampling: Sampling, eos_id: int
    ) -> tuple[list[list[int]], Tensor, Tensor]:
        """Returns responses with their EOS, and log-probabilities and entropies [rows, max_new_tokens]."""
        chosen = {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k")}
        fields = {"prompts": prompts, "sampling": chosen, "eos_id": eos_id}
        # a batch takes as long as it takes; a process that dies is noticed
        reply, found = self.ask("sample", fields, {"uniforms": uniforms}, seconds=None)
        return reply["responses"], found["logprobs"], found["entropies"]

    def close(self) -> None:
        """Ends the process and removes its files."""
        self.channel.close()
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def memory_folder(weight_bytes: int) -> str | None:
    """Returns /dev/shm where the weights fit twice, else None for the folder of temporary files."""
    shared = Path("/dev/shm")
    free = shutil.disk_usage(shared).free if shared.is_dir() and os.access(shared, os.W_OK) else 0
    return str(shared) if free > 2 * weight_bytes else None


def environment(needs: Needs, code: Path) -> dict[str, str]:
    """Returns the environment variables of the process: the stage's without those of its Python, its ranks and
    this project, such as a judge's key, and vLLM's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)}
    threads = str(needs.threads)
    return kept | {
        "PYTHONPATH": str(code),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "CUDA_VISIBLE_DEVICES": needs.gpus,
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # cores are granted by affinity and thread counts, not by vLLM
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "0",  # logits processors are its predecessor's
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        **({} if needs.gpus else {"TORCH_COMPILE_DISABLE": "1"}),
    }


def needs_of(policy: Policy, longest: int) -> Needs:
    """Returns the needs of a policy for prompts and responses of up to `longest` tokens.

    Raises:
        RecipeError: the model has fewer positions, or a variable is invalid.
    """
    config = policy.model.config
    fields = config.to_dict()
    positions = field(fields, POSITIONS)
    if positions is not None and longest > positions:
        raise RecipeError(
            f"engine is 'vllm', but prompts and responses have {longest} tokens and the model {positions} positions; "
            "shorten them, or take a model with more positions"
        )
    room = -(-longest // STEP) * STEP
    room = room if positions is None else min(positions, room)
    gpus = _gpus(policy.device)
    return Needs(
        config.to_json_string(), room, str(policy.model.dtype).removeprefix("torch."), _cache_bytes(policy, room),
        torch.get_num_threads(), gpus, bool(gpus) and os.environ.get(SLEEP_VARIABLE, "0") == "1",
    )  # fmt: skip


def _cache_bytes(policy: Policy, longest: int) -> int:
    """Returns bytes of the key-value cache: for all requests that run at a time, but at most what is granted."""
    text = os.environ.get(CACHE_VARIABLE, str(CACHE_GB))
    try:
        granted = float(text) * 2**30
    except ValueError:
        granted = 0.0
    if not 0 < granted < 2**50:
        raise RecipeError(f"{CACHE_VARIABLE} is '{text}'; it must be a number of GiB above 0, such as {CACHE_GB:g}")
    config = policy.model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    of_token = 2 * config.num_hidden_layers * heads * size * torch.finfo(policy.model.dtype).bits // 8
    pages = 128 * (-(-longest // 128) + 1)  # the largest page of vLLM's caches has 128 tokens
    return max(2 * pages * of_token, min(int(granted), REQUESTS * pages * of_token))


def _gpus(device: torch.device) -> str:
    """Returns CUDA_VISIBLE_DEVICES of this rank's vLLM process: a GPU of its own where granted, else the trainer's."""
    if device.type != "cuda":
        return ""
    granted, rank = os.environ.get(DEVICES_VARIABLE, ""), int(os.environ.get("LOCAL_RANK", "0"))
    if granted:
        names = [name.strip() for name in granted.split(",")]
        if rank >= len(names):
            raise RecipeError(
                f"{DEVICES_VARIABLE} is '{granted}', but process {rank + 1} of this machine needs its own"
            )
        return names[rank]
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    index = device.index if device.index is not None else torch.cuda.current_device()
    return seen.split(",")[index].strip() if seen else str(index)


#: The process of this trainer; a model of another shape replaces it.
_running: list[Process] = []


def close() -> None:
    """Ends this trainer's vLLM process, if there is one."""
    while _running:
        _running.pop().close()


atexit.register(close)


def process_for(policy: Policy, longest: int) -> Process:
    """Returns a vLLM process that fits a policy, started where none runs."""
    needs = needs_of(policy, longest)
    if _running:
        has = _running[0].needs
        alike = {**vars(has), "longest": 0, "cache_bytes": 0} == {**vars(needs), "longest": 0, "cache_bytes": 0}
        if alike and has.longest >= needs.longest:
            return _running[0]
        close()
    found = installed()
    config = copy.deepcopy(policy.model.config)
    config.architectures = [type(policy.model).__name__]
    size = sum(parameter.numel() * parameter.element_size() for parameter in policy.model.parameters())
    _running.append(Process(found, needs, config, size))
    return _running[0]


def _answer(
    policy: Policy, prompts: list[list[int]], uniforms: Tensor, sampling: Sampling
) -> tuple[list[list[int]], Tensor, Tensor]:
    """Returns the responses of `Process.sample`; where a process dies, another one does its work.

    The same random numbers give the same responses, whichever process samples.
    """
    longest = max(map(len, prompts)) + sampling.max_new_tokens
    words = ""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            process = process_for(policy, longest)
            process.take_weights(policy)
            return process.sample(prompts, uniforms, sampling, policy.eos_id)
        except ProcessDied as error:
            _running.clear()
            words = f"engine 'vllm' of rank {distributed.rank()} died: {error}"
            deaths.append(words)
            _LOG.warning("%s\n  (%d of %d; the batch is sampled anew)", words, attempt, ATTEMPTS)
        except RewardsmithError:
            close()
            raise
    raise RewardsmithError(f"{words}\n{ATTEMPTS} processes in a row died at the same batch; use engine: loop")


def sample_by_vllm(
    policy: Policy, prompt_ids: Tensor, prompt_mask: Tensor, sampling: Sampling, generator: torch.Generator
) -> Generated:
    """Samples one response per row; see `sampling.generate`. Log-probabilities and entropies are vLLM's.

    Raises:
        RecipeError: vLLM is not installed, or cannot run the model.
        RewardsmithError: vLLM fails.
    """
    try:
        check_vllm(policy.model.config.to_dict())
    except RecipeError as error:
        raise RecipeError(f"engine is 'vllm', but {error}; or use engine: loop") from None

    def sampler(ids: Tensor, mask: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        prompts = [row[real].tolist() for row, real in zip(ids, mask, strict=True)]
        responses, logprobs, entropies = _answer(policy, prompts, uniforms, sampling)
        padded, real = pad_rows([*responses, [0] * uniforms.shape[1]], policy.pad_id, "right")
        padded, real = padded[:-1].to(ids.device), real[:-1].to(ids.device)
        logprobs, entropies = (values.to(ids.device).masked_fill(~real, 0.0) for values in (logprobs, entropies))
        return padded, real, logprobs, entropies

    return sample_by(sampler, policy, prompt_ids, prompt_mask, sampling, generator)
