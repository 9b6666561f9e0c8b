"""A holistic reward without training: a language model reads a prompt and an answer in a template.

The reward of an answer is the mean log-probability of its tokens behind the prompt (`answer_tokens`), of any causal
model or of an endpoint that returns the log-probabilities of a prompt; or the one output of a reward model with a head
(`head`), such as UltraRM-13B, the paper's. Source: ALARM, section 2.3; the template is that of Figure 5, which the text
of the paper does not show, as the released code has it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from rlhf_core.errors import JudgeError, NumericsError, RecipeError
from rlhf_core.lazy import httpx, torch
from rlhf_core.services import CallFailed, client, post
from rlhf_core.typed import Checked, above, at_least, one_of

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: Figure 5: how UltraRM is asked.
FIGURE_5 = "Human: {instruction}\nAssistant: {completion}"
COMPLETION = "{completion}"
#: Largest log-probability, which rounding may put above 0.
ROUNDING = 1e-3
#: Most tokens at a prompt's end that are others where an answer follows.
MERGED = 3
T = TypeVar("T")
READS = ("answer_tokens", "head")
#: Name of the head of UltraRM's checkpoint, and what transformers calls it.
HEAD = {"^regression_head": "score"}


@dataclass(frozen=True)
class ZeroShotSettings(Checked):
    """A model that rewards answers without training, and how it is asked.

    Args:
        model: hub id or folder; at an endpoint, its name there.
        read: the mean log-probability of the answer's tokens, or the output of a reward model's head.
        template: with `{instruction}` and, at its end, `{completion}`.
        base_url: of an endpoint with `/completions` that echoes a prompt with its log-probabilities, as vLLM's; without
            one the model is loaded.
        api_key_variable: environment variable with the endpoint's key; none unless given.
        timeout_s: of a request.
        batch: answers per forward pass, or request.
        max_tokens: longest prompt with its answer; the prompt is cut on the left.
        precision: of the loaded weights.
        empty: reward of an answer without a token.
    """

    model: str
    read: Annotated[str, one_of(READS)] = "answer_tokens"
    template: str = FIGURE_5
    base_url: str | None = None
    api_key_variable: str | None = None
    timeout_s: Annotated[float, above(0)] = 120.0
    batch: Annotated[int, at_least(1)] = 16
    max_tokens: Annotated[int, at_least(2)] = 2048
    precision: Annotated[str, one_of(("float32", "bfloat16"))] = "float32"
    empty: float = -10.0

    def _check_together(self) -> None:
        if "{instruction}" not in self.template or not self.template.endswith(COMPLETION):
            raise RecipeError(f"template is {self.template!r}; it needs {{instruction}} and must end in {COMPLETION}")
        if self.base_url is not None and self.read == "head":
            raise RecipeError(
                "read is 'head', which an endpoint does not have; leave base_url out, or read answer_tokens"
            )

    def opening(self, instruction: str) -> str:
        """Returns the text before an answer."""
        return self.template.removesuffix(COMPLETION).replace("{instruction}", instruction)


@dataclass(frozen=True)
class LocalZeroShot:
    """A loaded model that rewards answers: a causal one, or one with a single output.

    Its own tokenizer reads them, with offset mapping, which says which tokens are the answer's.
    """

    settings: ZeroShotSettings
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    def rewards(self, instructions: Sequence[str], answers: Sequence[str]) -> list[float]:
        """Returns one reward for each answer, in float32, whatever the others are."""
        encoded = [self._encoded(one, text) for one, text in zip(instructions, answers, strict=True)]
        found = [self.settings.empty] * len(encoded)
        rows = [i for i, (_, count) in enumerate(encoded) if count]
        for chosen in _groups(sorted(rows, key=lambda i: len(encoded[i][0])), self.settings.batch):
            with torch.no_grad():
                values = self._scored([encoded[i] for i in chosen])
            for i, value in zip(chosen, values, strict=True):
                found[i] = value
        _check_finite(found, self.settings.model)
        return found

    def _encoded(self, instruction: str, answer: str) -> tuple[list[int], int]:
        """Returns the tokens of a prompt with its answer, and how many at the end are the answer's."""
        opening = self.settings.opening(instruction)
        read = self.tokenizer(opening + answer, return_offsets_mapping=True)
        own = [i for i, (start, end) in enumerate(read["offset_mapping"]) if end > max(start, len(opening))]
        if not own:
            return [], 0
        kept = list(read["input_ids"])[: own[-1] + 1][-self.settings.max_tokens :]
        return kept, min(len(own), len(kept) - 1)

    def _scored(self, rows: Sequence[tuple[list[int], int]]) -> list[float]:
        width = max(len(ids) for ids, _ in rows)
        device = self.model.device
        ids = torch.zeros((len(rows), width), dtype=torch.long)
        mask = torch.zeros((len(rows), width), dtype=torch.bool)
        for place, (tokens, _) in enumerate(rows):  # right-padded: every real token has the position that it has alone
            ids[place, : len(tokens)] = torch.tensor(tokens)
            mask[place, : len(tokens)] = True
        ids, mask = ids.to(device), mask.to(device)
        if self.settings.read == "head":
            hidden = self.model.base_model(input_ids=ids, attention_mask=mask.long())[0]
            last = mask.sum(dim=1) - 1
            ends = hidden[torch.arange(len(rows), device=device), last]
            return [float(value) for value in cast(Any, self.model).score(ends).squeeze(-1).float().cpu()]
        logits: Tensor = self.model(input_ids=ids, attention_mask=mask.long()).logits[:, :-1].float()
        found = logits.log_softmax(dim=-1).gather(2, ids[:, 1:, None]).squeeze(2).cpu()
        return [
            float(found[place, len(tokens) - 1 - count : len(tokens) - 1].mean())
            for place, (tokens, count) in enumerate(rows)
        ]


@dataclass(frozen=True)
class EndpointZeroShot:
    """A served model that rewards answers by the log-probabilities of their tokens.

    An answer's tokens are those behind the tokens that its prompt has alone.
    """

    settings: ZeroShotSettings
    client: httpx.Client

    def rewards(self, instructions: Sequence[str], answers: Sequence[str]) -> list[float]:
        """Returns one reward for each answer; JudgeError where a reply is not what the protocol says."""
        asked = [(self.settings.opening(one), text) for one, text in zip(instructions, answers, strict=True)]
        texts = dict.fromkeys(part for opening, text in asked if text for part in (opening, opening + text))
        tokens = dict(zip(texts, self._tokens(list(texts)), strict=True))
        found = [
            self._mean(tokens[opening + text], tokens[opening], text) if text else self.settings.empty
            for opening, text in asked
        ]
        _check_finite(found, self.settings.model)
        return found

    def _tokens(self, prompts: list[str]) -> list[list[tuple[str, float | None]]]:
        """Returns the tokens of each prompt with their log-probabilities; the first one has none."""
        body = {"model": self.settings.model, "echo": True, "logprobs": 0, "max_tokens": 0}
        key = os.environ.get(self.settings.api_key_variable or "", "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        where = f"{str(self.settings.base_url).rstrip('/')}/completions"
        found: list[list[tuple[str, float | None]]] = []
        try:
            for part in _groups(prompts, self.settings.batch):
                asked = {**body, "prompt": part}
                reply = post(self.client, where, self.settings.timeout_s, json=asked, headers=headers)
                if reply.status_code != 200:
                    raise CallFailed(f"HTTP {reply.status_code}")
                choices = {choice["index"]: choice["logprobs"] for choice in reply.json()["choices"]}
                for one in (choices[place] for place in range(len(part))):
                    found.append(list(zip(one["tokens"], one["token_logprobs"], strict=True)))
        except (CallFailed, ValueError, KeyError, TypeError, RecursionError) as error:
            raise JudgeError(
                f"{where} did not return the log-probabilities of {len(prompts)} prompts ({error!r}); it must take "
                "'echo' and 'logprobs', as vLLM's /v1/completions does"
            ) from error
        return found

    def _mean(
        self, tokens: Sequence[tuple[str, float | None]], prompt: Sequence[tuple[str, float | None]], text: str
    ) -> float:
        """Returns the mean log-probability of an answer's tokens, which may begin with the prompt's last characters."""
        alike = (before[0] == token[0] for before, token in zip(prompt, tokens, strict=False))
        own = tokens[sum(takewhile(bool, alike)) :]
        last = own[-1][0] if own else text
        cut = not text.endswith(last) and "\ufffd" not in last and not last.startswith("bytes:")
        if len(own) == len(tokens) or len(tokens) - len(own) < len(prompt) - MERGED or cut or not own:
            raise JudgeError(
                f"{self.settings.base_url}: the scored tokens are not those of the whole prompt and answer; raise the "
                "endpoint's limit on the length of a prompt"
            )
        values = [value for _, value in own if isinstance(value, float) and value <= ROUNDING]
        if len(values) < len(own):
            raise JudgeError(f"{self.settings.base_url}: a token of an answer has no log-probability")
        return sum(values) / len(own)


def _groups(rows: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _check_finite(found: Sequence[float], model: str) -> None:
    for place, value in enumerate(found):
        if not -float("inf") < value < float("inf"):
            raise NumericsError(f"zero-shot reward of answer {place + 1} by {model} is {value}; it must be finite")


ZeroShot = LocalZeroShot | EndpointZeroShot


def load_zero_shot(settings: ZeroShotSettings, device: str = "cpu") -> ZeroShot:
    """Returns the model of settings, loaded or asked over HTTP."""
    if settings.base_url is not None:
        return EndpointZeroShot(settings, client(1))
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    dtype = getattr(torch, settings.precision)
    try:
        tokenizer = AutoTokenizer.from_pretrained(settings.model)
        if settings.read == "answer_tokens":
            model = AutoModelForCausalLM.from_pretrained(settings.model, dtype=dtype)
        else:
            model, loading_info = AutoModelForSequenceClassification.from_pretrained(
                settings.model, dtype=dtype, num_labels=1, key_mapping=HEAD, output_loading_info=True
            )
            if any(name.startswith("score") for name in loading_info["missing_keys"]):
                raise RecipeError(f"zero-shot model {settings.model} has no head; set read: answer_tokens")
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"zero-shot model {settings.model} cannot be loaded ({str(error).splitlines()[0]}); download it to a "
            "folder and name the folder, or set base_url to an endpoint that serves it"
        ) from error
    if not tokenizer.is_fast:
        raise RecipeError(
            f"the tokenizer of {settings.model} has no offset mapping; name a model with a fast tokenizer"
        )
    return LocalZeroShot(settings, cast(Any, model).to(device).eval(), tokenizer)
