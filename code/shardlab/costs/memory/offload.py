"""Offloading: a model too large for its chip lives in host memory and crosses PCIe every step.

ZeRO-Offload (Ren et al. 2021, https://arxiv.org/abs/2101.06840) and ZeRO-Infinity (Rajbhandari et
al. 2021, section 4, https://arxiv.org/abs/2104.07857). Layer after layer, parameters are loaded for
forward and again for backward; gradients go out and are summed in the host's memory. Either the
host runs the optimizer, or the optimizer's states are loaded and written back too. PCIe carries
both directions at once, and transfers may overlap arithmetic: times are lower bounds.
"""

from dataclasses import dataclass

from shardlab.files.arguments import Count, Positive, Share, checked

from ..facts.hardware import LINK_UTILISATION, Chip, Link
from ..facts.recipes import MIXED, Recipe

UPDATES = ("host", "chip")


@dataclass(frozen=True, kw_only=True)
@checked
class Swap:
    """One training step whose states all live in the host's memory."""

    num_parameters: Positive
    tokens: Positive  # of one microbatch: what is computed each time the parameters come in
    chip: Chip
    link: Link  # to the host's memory, such as `hardware.host_link(chip)`
    num_microbatches: Count = 1
    # Times the parameters are loaded for a microbatch: 2 as in `ranks.memory.offload`, also where
    # a layer is recomputed, just before its backward; 3 in ZeRO-Infinity, which then loads again.
    loads: Count = 2
    recomputes: bool = False  # backward computes forward a second time
    update: str = "host"  # where the parameters are updated, see UPDATES
    recipe: Recipe = MIXED
    utilisation: Share = 0.4  # of the chip's peak, while nothing waits for a transfer
    link_utilisation: Share = LINK_UTILISATION  # of the link's rate, while it transfers

    def __post_init__(self) -> None:
        if self.update not in UPDATES:
            raise ValueError(f"unknown update {self.update!r}; use one of {', '.join(UPDATES)}")

    @property
    def to_chip(self) -> dict[str, float]:
        """Bytes loaded from the host's memory, by part."""
        on_chip = self.update == "chip"
        loads = self.loads * self.num_microbatches
        return {
            "parameters": loads * self.recipe.parameters * self.num_parameters,
            "gradients": on_chip * self.recipe.gradients * self.num_parameters,
            "optimizer": on_chip * self.recipe.optimizer * self.num_parameters,
        }

    @property
    def to_host(self) -> dict[str, float]:
        """Bytes written to the host's memory, by part."""
        on_chip = self.update == "chip"
        return {
            "parameters": on_chip * self.recipe.parameters * self.num_parameters,
            "gradients": self.recipe.gradients * self.num_microbatches * self.num_parameters,
            "optimizer": on_chip * self.recipe.optimizer * self.num_parameters,
        }

    @property
    def transfer(self) -> float:
        """Seconds for which the busier direction of the link is busy in one step."""
        busier = max(sum(self.to_chip.values()), sum(self.to_host.values()))
        return busier / (self.link_utilisation * self.link.bandwidth)

    @property
    def compute(self) -> float:
        """Seconds of a step's arithmetic: 6 FLOPs per parameter and token, 8 if forward runs
        twice.
        """
        each = 8 if self.recomputes else 6
        work = each * self.num_parameters * self.tokens * self.num_microbatches
        return work / (self.utilisation * self.chip.peak_flops)

    @property
    def seconds(self) -> float:
        """Seconds of a step in which the shorter of transfers and arithmetic is hidden."""
        return max(self.transfer, self.compute)

    @property
    def ratio(self) -> float:
        """How many times as long the step takes as on a chip that holds everything."""
        return self.seconds / self.compute

    @property
    def tokens_to_hide(self) -> float:
        """Tokens of a microbatch with which a step computes as long as it transfers.

        Forward alone needs more, as it loads as much as backward and computes less.
        """
        return self.tokens * self.transfer / self.compute
