"""Grammar through LanguageTool: -1 for every wrong token, 0 for the others (ALARM, §4.2 and Appendix A.2).

A running LanguageTool server is asked by URL (`/v2/check`): the one given, or the one that the environment variable
REWARDSMITH_LANGUAGETOOL names. `infra/languagetool/compose.yaml` starts one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar

from rlhf_core.aspects.aspect import Density, Scored
from rlhf_core.aspects.tokens import Offsets, marked, words
from rlhf_core.errors import RecipeError, ToolError
from rlhf_core.lazy import httpx
from rlhf_core.services import CallFailed, CallSettings, Service, Usage, check_address, client, digest, post
from rlhf_core.typed import above

Spans = list[tuple[int, int]]

#: Environment variable that names a running server.
URL_VARIABLE = "REWARDSMITH_LANGUAGETOOL"


@dataclass(frozen=True)
class LanguageToolGrammar(CallSettings):
    """Errors of grammar, token by token.

    Args:
        url: of a running server, such as http://127.0.0.1:8081; None takes the variable's.
        language: code that LanguageTool knows.
        disabled_rules: rule ids that are not errors here.
        timeout_s: longest time until an answer is whole, seconds.
        offsets: character spans of the tokens of a text; words and marks without one.
    """

    name: ClassVar[str] = "grammar"
    density: ClassVar[Density] = Density.TOKEN
    higher_is_better: ClassVar[bool] = False

    url: str | None = None
    language: str = "en-US"
    disabled_rules: tuple[str, ...] = ()
    timeout_s: Annotated[float, above(0)] = 20.0
    offsets: Offsets | None = None

    def _check_together(self) -> None:
        if not self._address:
            raise RecipeError(
                f"aspect 'grammar': no LanguageTool server is named; set {URL_VARIABLE} or url "
                "(infra/languagetool/compose.yaml starts one)"
            )
        try:
            check_address(self._address)
        except RecipeError as error:
            raise RecipeError(f"aspect 'grammar': url is '{self._address}'; {error}") from None

    @cached_property
    def _address(self) -> str:
        return (self.url or os.environ.get(URL_VARIABLE, "")).rstrip("/")

    @cached_property
    def _service(self) -> Service[str]:
        return Service("languagetool", partial(self._ask, client(self.concurrency)), self)

    @property
    def usage(self) -> Usage:
        """Returns the counts of requests to the server so far."""
        return self._service.usage

    def prefetch(self, responses: Sequence[str]) -> None:
        """Starts asking about responses, so that the tool works while something else does."""
        self._service.prefetch(self._questions(responses))

    def score(self, records: Sequence[Mapping[str, Any]], responses: Sequence[str]) -> list[Scored]:
        asked = self._questions(responses)
        try:
            rows = self._service.answers(asked)
        except CallFailed as failure:
            raise ToolError(
                f"LanguageTool at {self._address}: {failure}. No score is made up: training stops here"
            ) from None
        found = {text: spans_of(json.loads(rows[key]["text"]), text) for key, text in asked.items()}
        errors = [found.get(text, []) for text in responses]
        return [
            replace(marked((self.offsets or words)(text), spans), errors=len(spans))
            for text, spans in zip(responses, errors, strict=True)
        ]

    def _questions(self, responses: Sequence[str]) -> dict[str, str]:
        identity = {"tool": "languagetool", "language": self.language, "disabled": sorted(self.disabled_rules)}
        return {digest({**identity, "text": text}): text for text in responses if text.strip()}

    def _ask(self, connection: httpx.Client, text: str) -> dict[str, str]:
        """Returns the server's answer about a text, which `spans_of` reads."""
        rules = {"disabledRules": ",".join(self.disabled_rules)} if self.disabled_rules else {}
        form = {"language": self.language, **rules, "text": text}
        response = post(connection, f"{self._address}/v2/check", self.timeout_s, data=form)
        if response.status_code in (400, 401, 403, 404, 405, 413):
            raise CallFailed(f"refused the request with {response.status_code}: {response.text[:200]!r}", final=True)
        if response.status_code != 200:
            raise CallFailed(f"answered with status {response.status_code}")
        try:
            answer = response.json()
        except ValueError:
            raise CallFailed(f"answered with no JSON: {response.text[:80]!r}") from None
        spans_of(answer, text)
        return {"text": json.dumps(answer, ensure_ascii=False)}


def spans_of(answer: Any, text: str) -> Spans:
    """Returns the character spans of the errors in an answer of `/v2/check`.

    LanguageTool counts in UTF-16 code units, where a character beyond U+FFFF is two.

    Raises:
        CallFailed: an answer of another form, or a span outside the text.
    """
    matches = answer.get("matches") if isinstance(answer, dict) else None
    if not isinstance(matches, list):
        raise CallFailed("the answer has no list of matches")
    places = [0]
    for character in text:
        places.append(places[-1] + 1 + (ord(character) > 0xFFFF))
    position = {units: index for index, units in enumerate(places)}
    spans = []
    for match in matches:
        offset, length = (match.get(key) if isinstance(match, dict) else None for key in ("offset", "length"))
        if type(offset) is not int or type(length) is not int or length < 0:
            raise CallFailed("a match has no whole offset and length")
        if offset not in position or offset + length not in position:
            raise CallFailed(f"a match is at {offset} to {offset + length}, outside the text of {places[-1]}")
        spans.append((position[offset], position[offset + length]))
    return sorted(spans)
