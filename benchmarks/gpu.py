"""Policy optimisation's phases and the fused log-probabilities on one GPU, for a half-billion-parameter Llama shape.

    python -m benchmarks.gpu [--shape half-billion] [--batch 64] [--prompt 256] [--response 256]
    python -m benchmarks.gpu --shape tiny --batch 4 --prompt 8 --response 8 --repeats 1      (any machine)

Weights are random and rows have full length, so that every number is of known work: generation, scoring (forward) and
update (forward, backward, Adam), weights in bfloat16, statistics in float32. Model FLOPs are 2 a parameter and token
forward and 6 with backward, plus attention's; the embedding counts where it is the output projection. Utilisation is
against the dense bfloat16 peak and the memory bandwidth of the device, as its maker states them or as given. While
generating, every step reads all weights and the cache once: that traffic is set against the bandwidth.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf_core.models.generation import generate
from rlhf_core.models.loading import set_precision
from rlhf_core.models.logprobs import token_statistics
from rlhf_core.models.policy import DecoderPolicy
from rlhf_core.models.sampling import Sampling
from rlhf_core.stepper import stepper_of

SHAPES: dict[str, dict[str, int]] = {
    "half-billion": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
                     "num_key_value_heads": 8, "vocab_size": 128_256},
    "tiny": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
             "num_key_value_heads": 1, "vocab_size": 10_000},
}  # fmt: skip
#: Part of the device's name -> (dense bfloat16 TFLOP/s, memory GB/s).
PEAKS = {"H200": (989.0, 4800.0), "H100": (989.0, 3350.0), "A100": (312.0, 2039.0), "L40S": (362.0, 864.0)}


@dataclass(frozen=True)
class Measured:
    """Of one phase: medians; what cannot be said of a device is None."""

    phase: str
    seconds: float
    tokens_per_second: float
    flop_utilisation: float | None
    bandwidth_utilisation: float | None
    peak_gib: float | None


class Device:
    """Times and peaks of a device.

    Args:
        peaks: (TFLOP/s, GB/s) where they are not those in `PEAKS`.
    """

    def __init__(self, peaks: tuple[float, float] | None) -> None:
        self.on_gpu = torch.cuda.is_available()
        self.name = torch.cuda.get_device_name() if self.on_gpu else "cpu"
        self.peaks = peaks or next((found for part, found in PEAKS.items() if part in self.name), None)

    @property
    def torch(self) -> torch.device:
        return torch.device("cuda" if self.on_gpu else "cpu")

    def measure(
        self, phase: str, work: Callable[[], Any], repeats: int, tokens: int, flops: float, traffic: float | None = None
    ) -> Measured:
        """Median of the repeats after one that is thrown away; flops and bytes of traffic are of one repeat."""
        work()
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        seconds = []
        for _ in range(repeats):
            self.wait()
            started = time.perf_counter()
            work()
            self.wait()
            seconds.append(time.perf_counter() - started)
        median = statistics.median(seconds)
        return Measured(
            phase, median, tokens / median,
            flops / median / (self.peaks[0] * 1e12) if self.peaks else None,
            traffic / median / (self.peaks[1] * 1e9) if self.peaks and traffic else None,
            torch.cuda.max_memory_allocated() / 2**30 if self.on_gpu else None,
        )  # fmt: skip

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()


def build(shape: str, attention: str, device: torch.device) -> DecoderPolicy:
    """A random Llama in bfloat16 with tied embeddings; no token of it ends a response."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **SHAPES[shape], tie_word_embeddings=True, max_position_embeddings=8192, attn_implementation=attention
    )
    torch.manual_seed(0)
    with device:
        model = LlamaForCausalLM(config).eval()
    set_precision(model, torch.bfloat16)
    return DecoderPolicy(model, pad_id=0, eos_id=-1)


def phases(policy: DecoderPolicy, device: Device, options: argparse.Namespace) -> list[Measured]:
    """Generation, scoring and update."""
    config = policy.model.config
    batch, prompt, response = options.batch, options.prompt, options.response
    length = prompt + response
    parameters = sum(p.numel() for p in policy.model.parameters())
    # Of attention's two products, causal: half of 4 * hidden * length a token and layer.
    forward = batch * length * (2 * parameters + config.num_hidden_layers * 2 * config.hidden_size * length)
    layer_cache = 2 * config.num_key_value_heads * (config.hidden_size // config.num_attention_heads)
    cached = batch * config.num_hidden_layers * layer_cache * (prompt + response / 2)
    traffic = response * 2 * (parameters + cached)
    prompts = torch.randint(1, config.vocab_size, (batch, prompt), device=policy.device)
    prompt_mask = torch.ones_like(prompts, dtype=torch.bool)
    ids = torch.randint(1, config.vocab_size, (batch, response), device=policy.device)
    mask = torch.ones_like(ids, dtype=torch.bool)
    stepper = stepper_of(policy.model, "adam", rate=1e-6, betas=(0.9, 0.95), max_grad_norm=1.0)

    def sample() -> None:
        generate(policy, prompts, prompt_mask, Sampling(response), torch.Generator().manual_seed(0))

    def parts(with_entropy: bool) -> Any:
        for start in range(0, batch, options.microbatch):
            rows = slice(start, start + options.microbatch)
            yield policy.statistics(prompts[rows], prompt_mask[rows], ids[rows], mask[rows], with_entropy=with_entropy)

    @torch.no_grad()
    def score() -> None:
        for _ in parts(True):
            pass

    def update() -> None:
        stepper.zero_grad()
        for part in parts(False):
            stepper.backward(-part.logprobs.sum() / mask.sum())
        stepper.step(lambda norm: None)

    processed = batch * length
    return [
        device.measure("generate", sample, options.repeats, batch * response, forward, traffic),
        device.measure("score", score, options.repeats, processed, forward),
        device.measure("update", update, options.repeats, processed, 3 * forward),
    ]


def projection(policy: DecoderPolicy, device: Device, options: argparse.Namespace) -> list[Measured]:
    """Log-probabilities and entropies of 2,048 tokens: fused and naive, forward, and forward with backward."""
    output = policy.model.get_output_embeddings()
    tokens = min(2048, options.batch * options.response)
    hidden = torch.randn(tokens, output.in_features, device=policy.device, dtype=torch.bfloat16)
    targets = torch.randint(0, output.out_features, (tokens,), device=policy.device)
    flops = 2.0 * tokens * output.in_features * output.out_features

    def naive(state: Tensor) -> tuple[Tensor, Tensor]:
        log_p = output(state).float().log_softmax(dim=-1)
        return log_p.gather(1, targets[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(dim=-1)

    def fused(state: Tensor) -> tuple[Tensor, Tensor]:
        return token_statistics(state, targets, output)

    found = []
    for name, function in (("fused", fused), ("naive", naive)):

        def forward(function: Any = function) -> None:
            with torch.no_grad():
                function(hidden)

        def both(function: Any = function) -> None:
            output.weight.grad = None
            logprobs, entropies = function(hidden.clone().requires_grad_())
            (logprobs.sum() + 0.01 * entropies.sum()).backward()

        found.append(device.measure(f"{name}, forward", forward, options.repeats, tokens, flops))
        found.append(device.measure(f"{name}, with backward", both, options.repeats, tokens, 3 * flops))
    policy.model.zero_grad(set_to_none=True)
    return found


def show(found: list[Measured]) -> None:
    def text(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    print(f"{'phase':<24}{'seconds':>10}{'tokens/s':>12}{'MFU':>8}{'bandwidth':>11}{'peak GiB':>10}")
    for row in found:
        print(
            f"{row.phase:<24}{row.seconds:>10.4f}{row.tokens_per_second:>12.0f}{text(row.flop_utilisation, '.1%'):>8}"
            f"{text(row.bandwidth_utilisation, '.1%'):>11}{text(row.peak_gib, '.2f'):>10}"
        )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shape", choices=list(SHAPES), default="half-billion")
    parser.add_argument("--batch", type=int, default=64, help="rows")
    parser.add_argument("--microbatch", type=int, default=16, help="rows of a forward pass when scoring and updating")
    parser.add_argument("--prompt", type=int, default=256, help="tokens")
    parser.add_argument("--response", type=int, default=256, help="tokens")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--attention", default="sdpa", help="sdpa, flash_attention_2 or eager")
    parser.add_argument("--peaks", type=float, nargs=2, metavar=("TFLOPS", "GBPS"), help="of a device not listed")
    parser.add_argument("--out", type=Path, default=Path(".work/benchmarks"))
    options = parser.parse_args(arguments)
    device = Device(tuple(options.peaks) if options.peaks else None)
    if not device.on_gpu and options.shape != "tiny":
        raise SystemExit("error: no GPU here; --shape tiny runs anywhere")
    policy = build(options.shape, options.attention, device.torch)
    print(f"{device.name}, torch {torch.__version__}, {sum(p.numel() for p in policy.model.parameters()):,} parameters")
    found = projection(policy, device, options) + phases(policy, device, options)
    show(found)
    options.out.mkdir(parents=True, exist_ok=True)
    report = {
        "device": device.name,
        "torch": torch.__version__,
        "options": {k: str(v) for k, v in vars(options).items()},
    }
    (options.out / "gpu.json").write_text(
        json.dumps({**report, "phases": [asdict(row) for row in found]}, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
