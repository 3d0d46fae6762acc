"""One backward with and without overlap: buckets of gradients slide under it, and time is saved.

buckets.js draws it at the time to which the reader moves the clock.
"""

from __future__ import annotations

import html
import json
from dataclasses import dataclass, replace

from shardlab.costs import step, units
from shardlab.costs.data_parallel import machines, overlap, scaling
from shardlab.costs.data_parallel.overlap import BucketMessage
from shardlab.costs.facts import models
from shardlab.costs.programs import BOOK
from shardlab.costs.step import Run
from shardlab.costs.training import Training
from shardlab.sharding.layout import Layout

from .moving import MovingPicture, clock, moving, switch
from .page import table

MODEL, NETWORK = "GPT-2 XL", "PCIe, 1 InfiniBand card"
NUM_RANKS, SEQUENCES, SEQUENCE = 8, 8, 1024  # in one server; of a rank; tokens of each
NUM_BUCKETS = 8  # so few that each can be seen


def backward() -> Run:
    """Return the run whose backward is shown, with overlap."""
    spec = models.published(MODEL).spec
    size = 2 * models.num_parameters(spec) / NUM_BUCKETS
    training = Training(
        spec=spec,
        layout=Layout(dp=NUM_RANKS),
        microbatch=SEQUENCES,
        sequence=SEQUENCE,
        program=replace(BOOK, bucket_bytes=size),
    )
    return Run(training=training, cluster=machines.cluster(NETWORK, NUM_RANKS))


@dataclass(frozen=True)
class Sending:
    """How and when the gradients of a run travel."""

    run: Run

    @property
    def messages(self) -> list[BucketMessage]:
        """List the all-reduces of the buckets."""
        return overlap.messages(self.run)

    @property
    def waits(self) -> str:
        """Say how long a GPU waits after backward."""
        return units.text(step.step(self.run).waiting, "s")

    @property
    def states(self) -> list[str]:
        """Say how far the averages are, after each bucket, none included."""
        some = [f"{done} of {NUM_BUCKETS} buckets averaged" for done in range(NUM_BUCKETS)]
        end = units.text(self.messages[-1].end, "s")
        return [*some, f"all averaged {end} after backward began: a GPU waits {self.waits}"]


def rows(late: Sending, hidden: Sending) -> list[list[str]]:
    """Return the buckets as a table, its header first."""
    body = []
    for number, (after, during) in enumerate(zip(late.messages, hidden.messages, strict=True)):
        times = (during.ready, after.start, after.end, during.start, during.end)
        body.append([f"bucket {number}", *(units.text(second, "s") for second in times)])
    header = ["", "gradients ready", "sent after backward", "averaged"]
    waits = ["a GPU waits", "", "", late.waits, "", hidden.waits]
    return [[*header, "sent with overlap", "averaged"], *body, waits]


class Buckets(MovingPicture):
    """One backward and its buckets: a picture on a page, a table in a kernel."""

    def __init__(self) -> None:
        self.hidden = Sending(backward())
        self.late = Sending(scaling.without_overlap(self.hidden.run))

    def drawn(self) -> str:
        """Return what buckets.js draws: seconds from the start of backward."""
        sendings = [self.late, self.hidden]
        first, last = (each.messages[-1].end for each in reversed(sendings))
        return json.dumps(
            {
                "layers": [part.seconds for part in overlap.backward_parts(self.hidden.run)],
                "ready": [each.ready for each in self.hidden.messages],
                "sent": [[(m.start, m.end) for m in each.messages] for each in sendings],
                "states": [each.states for each in sendings],
                "saved": units.text(last - first, "s"),
            }
        )

    def html(self) -> str:
        """Return picture and table for a page; without JavaScript there is no picture."""
        slider = clock('step="any"')
        picture = (
            f'<p class="buckets-state"></p>{slider}'
            f'<div class="buckets-picture" data-sendings="{html.escape(self.drawn())}"></div>'
        )
        hands = switch("Overlap with backward")
        return moving("buckets", "Buckets under backward", picture, self.table(), hands=hands)

    def table(self) -> str:
        """Return the numbers as an HTML table."""
        return table(rows(self.late, self.hidden))
