"""How often published runs and machines were interrupted, and by what."""

from dataclasses import dataclass

from shardlab.files.arguments import Count, Positive, checked

from .rows import rows


@dataclass(frozen=True, kw_only=True)
@checked
class Interruptions:
    """Unexpected interruptions of `gpus` GPUs in `days` days."""

    name: str
    accelerator: str
    gpus: Count
    days: Positive
    failures: Positive
    source: str

    @property
    def gpu_hours(self) -> float:
        """Hours of one GPU for each interruption."""
        return self.gpus * self.days * 24 / self.failures


@dataclass(frozen=True, kw_only=True)
@checked
class Cause:
    """How often one cause interrupted Llama 3 405B."""

    cause: str
    times: Count
    source: str


RUNS = rows("interruptions", Interruptions)
CAUSES = rows("interruption_causes", Cause)
