"""Random models and sequences of known size: every sequence has its full length, so that all work is known."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from functools import cached_property

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.gpu_check.device import Device
from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.models.forecast import Work
from rlhf_core.models.loading import PRECISIONS, decoder_of, set_attention, set_precision
from rlhf_core.models.packing import pad
from rlhf_core.models.policy import Policy
from rlhf_core.models.reward_model import ScalarModel

PAD = 0


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama with tied embeddings."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int


@dataclass(frozen=True)
class Sizes:
    """Sizes of the check.

    Attributes:
        shape: of every model but those of the part `wide`.
        wide: a few layers as wide as those of a model of eight billion parameters.
        batch: rows per step; pairs in training on pairs.
        microbatch: rows per forward pass.
        prompt, response: tokens.
        repeats: timed steps, after one that is not.
        sampled: rows that an engine samples at a time.
        group: responses to a prompt.
    """

    shape: Shape
    wide: Shape
    batch: int
    microbatch: int
    prompt: int
    response: int
    repeats: int
    sampled: tuple[int, ...]
    group: int

    @property
    def length(self) -> int:
        return self.prompt + self.response


HALF_BILLION = Sizes(
    Shape(1024, 4096, 24, 16, 8, 128_256), Shape(4096, 14_336, 4, 32, 8, 32_000),
    batch=64, microbatch=16, prompt=256, response=256, repeats=4, sampled=(64, 256, 512), group=8,
)  # fmt: skip
#: Its vocabulary is just large enough for the fused log-probabilities.
TINY = Sizes(
    Shape(32, 64, 2, 2, 1, 10_000), Shape(64, 128, 1, 2, 1, 100),
    batch=4, microbatch=2, prompt=8, response=8, repeats=2, sampled=(4, 8), group=2,
)  # fmt: skip


def sizes_of(rehearsal: bool) -> Sizes:
    """Returns the sizes of the check or of its rehearsal."""
    return TINY if rehearsal else HALF_BILLION


@dataclass(frozen=True)
class Check:
    """One run of the check: sizes and device.

    Attributes:
        sizes: of models and batches.
        device: where it runs.
        attention: of its models.
        padded: whether models pad their batches, which they otherwise pack.
    """

    sizes: Sizes
    device: Device
    attention: str = "sdpa"
    padded: bool = False

    def policy(self, precision: str = "bf16") -> Policy:
        """Returns a random language model; no token of it ends a response.

        Raises:
            RecipeError: this machine does not have the attention.
        """
        config = LlamaConfig(**asdict(self.sizes.shape), tie_word_embeddings=True, max_position_embeddings=8192)
        torch.manual_seed(0)
        with self.device.torch:
            model = LlamaForCausalLM(config).eval()
        set_precision(model, PRECISIONS[precision])
        set_attention(model, self.attention)
        if self.padded:
            pad(decoder_of(model))
        return Policy(model, pad_id=PAD, eos_id=-1)

    def scalar_model(self, head: str = "reward") -> ScalarModel:
        """Returns a random reward model, or a critic with the head 'value'."""
        options = {"heads": (head,), "bias": head == "value"}
        model = ScalarModel.from_language_model(self.policy().model, **options).to(self.device.torch)
        if self.padded:
            pad(model.backbone)
        return model

    @cached_property
    def output_parameters(self) -> int:
        """Parameters of the output projection."""
        return self.sizes.shape.vocab_size * self.sizes.shape.hidden_size

    @cached_property
    def body_parameters(self) -> int:
        """Parameters that every token is multiplied with: all but the embeddings."""
        with torch.device("meta"):
            model = LlamaForCausalLM(LlamaConfig(**asdict(self.sizes.shape), tie_word_embeddings=True))
        return sum(p.numel() for p in model.parameters()) - self.output_parameters

    def products(self, tokens: int, projected: int = 0) -> float:
        """Returns parameters times tokens of a pass over `tokens`, of which `projected` have logits."""
        return float(self.body_parameters * tokens + self.output_parameters * projected)

    def sampling_work(self) -> Work:
        """Returns the work of one sampled batch: its prompts are read once."""
        prompts, responses = self.sizes.batch * self.sizes.prompt, self.sizes.batch * self.sizes.response
        return Work(scored=self.products(prompts), sampled=self.products(responses, responses))

    def sampling_traffic(self) -> float:
        """Returns bytes that sampling a batch reads: at each token all weights and the cache so far, in bf16."""
        shape, sizes = self.sizes.shape, self.sizes
        state = 2 * shape.num_key_value_heads * (shape.hidden_size // shape.num_attention_heads)
        cached = sizes.batch * shape.num_hidden_layers * state * (sizes.prompt + sizes.response / 2)
        return sizes.response * 2.0 * (self.products(1, 1) + cached)

    def rows(self, seed: int) -> list[EncodedSequence]:
        """Returns random sequences; the prompts are the same for every seed, so that two lists are pairs."""
        prompts, responses, sizes = random.Random("prompts"), random.Random(f"responses-{seed}"), self.sizes

        def ids(rng: random.Random, count: int) -> list[int]:
            return rng.choices(range(1, sizes.shape.vocab_size), k=count)

        made = range(sizes.batch)
        return [EncodedSequence(ids(prompts, sizes.prompt), ids(responses, sizes.response)) for _ in made]

    def uneven_rows(self, seed: int) -> list[EncodedSequence]:
        """Returns random sequences whose responses have from one token to their full length."""
        rng = random.Random(f"lengths-{seed}")
        return [
            EncodedSequence(row.prompt, row.response[: rng.randint(1, self.sizes.response)]) for row in self.rows(seed)
        ]

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Returns a tokenizer of numbered words, one for each row of the embeddings."""
        words = {f"w{i}": i for i in range(self.sizes.shape.vocab_size)}
        backend = Tokenizer(models.WordLevel(words, unk_token="w0"))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="w0")
