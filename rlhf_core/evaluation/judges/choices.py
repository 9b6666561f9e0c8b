"""The judges that an evaluation names, as in `{kind: gold, persona: exact}` and `{kind: endpoint, base_url: ...}`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from rlhf_core.choices import Choices
from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.judges.openai_endpoint import EndpointConfig, EndpointJudge
from rlhf_core.testbed.annotator import DEFAULT_TEMPERATURE
from rlhf_core.testbed.judge import PERSONAS, GoldJudge
from rlhf_core.typed import Checked, Seed, above, check_given, one_of

if TYPE_CHECKING:
    from rlhf_core.evaluation.judges.templates import Judge
    from rlhf_core.testbed.knowledge import GoldWorld


@dataclass(frozen=True)
class Gold(Checked):
    """The testbed's judge, which knows the true reward.

    Args:
        persona: one of `PERSONAS`.
        seed: of its noise.
        temperature: of its soft preferences, in reward units.
    """

    needs_world: ClassVar[bool] = True
    persona: Annotated[str, one_of(PERSONAS)] = "exact"
    seed: Seed = 0
    temperature: Annotated[float, above(0)] = DEFAULT_TEMPERATURE

    def judge(self, world: GoldWorld | None) -> Judge:
        """Returns the judge of a world.

        Raises:
            RecipeError: no world, since the data is not of the testbed.
        """
        if world is None:
            raise RecipeError("a gold judge works on the testbed only; for real data name an endpoint judge, or none")
        return GoldJudge(world, self.persona, self.seed, self.temperature)


@dataclass(frozen=True)
class JudgeEndpoint(EndpointConfig):
    """A language model behind an OpenAI-compatible endpoint."""

    needs_world: ClassVar[bool] = False

    def judge(self, world: GoldWorld | None) -> Judge:
        """Returns the judge; it needs no world."""
        return EndpointJudge(self)


#: Settings of each kind of judge, with `judge(world)`, and whether it knows true rewards (`needs_world`).
JUDGES: Choices[type[Any]] = Choices(
    "judge kind",
    {"gold": Gold, "endpoint": JudgeEndpoint},
    needs=("judge", "needs_world"),
    dataclasses=True,
)


def check_stated_judge(spec: Any) -> None:
    """Refuses a judge that a file states wrongly; environment variables in its texts may be set later.

    Raises:
        RecipeError: an unknown kind or setting, a missing one, or a value that is wrong.
    """
    kind = JUDGES.kind_of(spec)
    check_given(JUDGES[kind], JUDGES.stated_options(spec), complete=True)
