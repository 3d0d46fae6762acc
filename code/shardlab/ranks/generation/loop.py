"""The loop: some ranks train, others generate; weights go one way, and texts the other.

The first ranks train, with `plain.zero`'s stage 3. The others are one `plain.generator`, cut by
`plain.tensor_parallel`. In turn (off=0), and one step off (off=1):

    trainers      . . . . train 0 . . . . train 1     . . . . train 0 train 1
    generators    write 0 . . . . write 1 . . . .     write 0 write 1 . . . .
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

import torch
from torch import Tensor, nn

from shardlab import comm
from shardlab.plain import data_parallel, generator, hand_over, tensor_parallel, zero
from shardlab.sharding.layout import Layout
from shardlab.sharding.places import places
from shardlab.trace import Event

from ..transformer import Transformer
from . import learning, task
from .learning import Rollouts

BUCKET = 1_000_000  # numbers


@dataclass
class LearningRun:
    """What a rank returns; rewards and rollouts are the same on all ranks."""

    rewards: list[float] = field(default_factory=list)  # the mean of each step
    rollouts: list[Rollouts] = field(default_factory=list)  # of each step
    mismatch: list[float] = field(default_factory=list)  # of a trainer: largest |log p - old log p|
    events: list[Event] = field(default_factory=list)  # generate, train, hand over, waiting
    sent: int = 0  # numbers that this rank sends in a hand-over
    weights: dict[str, Tensor] = field(default_factory=dict)  # this rank's, after the last step

    @contextmanager
    def span(self, rank: int, what: str) -> Iterator[None]:
        """Record what a rank does meanwhile."""
        begin = monotonic()
        yield
        kind = "idle" if what == "waiting" else "compute"
        self.events.append(Event(rank, kind, what, (), 0, begin, monotonic()))


class LearningRank:
    """A rank that trains: its piece of each parameter, and its share of the texts."""

    def __init__(self, model: Transformer, group: comm.Group, rate: float):
        layers = [model.embedding, *model.blocks, nn.Sequential(model.norm, model.head)]
        self.states = zero.ZeRO3(layers, group, lambda pieces: torch.optim.Adam(pieces, lr=rate))
        self.weights = {name: self.states.piece[p] for name, p in model.named_parameters()}
        self.mismatch: list[float] = []

    def train(self, texts: Rollouts) -> None:
        """Take one step; texts: those of all ranks."""
        mine = Rollouts(*(data_parallel.shard(x, self.states.group) for x in vars(texts).values()))
        share = int(mine.drawn.sum()) / int(texts.drawn.sum())  # so that a token counts once
        self.states.step(mine.tokens[:, :-1], mine.tokens, partial(self.loss, mine), share)

    def loss(self, mine: Rollouts, logits: Tensor, tokens: Tensor) -> Tensor:
        """Return the mean over this rank's tokens; note how far the two engines are apart."""
        ours = learning.log_p(logits, tokens)                         # [B, S - 1]
        apart = (ours.detach() - mine.log_p[:, 1:])[mine.drawn[:, 1:]]
        self.mismatch.append(float(apart.abs().max()))
        return learning.loss(ours, mine)


def write(engine: generator.Generator, prompts: list[list[int]], seed: int) -> Tensor:
    """Answer prompts: tokens, and log p of those drawn, [2, B, S]; seed: of the first text."""
    texts = [generator.Text(prompt, seed + number) for number, prompt in enumerate(prompts)]
    engine.add(texts)
    while engine.step():
        pass
    tokens = task.padded([text.tokens for text in texts])             # [B, S]
    log_p = [[0.0] * task.PROMPT + text.log_p for text in texts]
    rows = [row + [0.0] * (tokens.shape[1] - len(row)) for row in log_p]
    return torch.stack([tokens.double(), torch.tensor(rows, dtype=torch.float64)])


def marked(message: Tensor, answers: int, version: int) -> tuple[float, Rollouts]:
    """Read [2, B, S] of the generator: the mean reward, and texts with their advantages."""
    tokens = message[0].long()                                        # [B, S]
    drawn = tokens != task.PAD                                        # [B, S]
    texts = [row[here].tolist() for row, here in zip(tokens, drawn, strict=True)]
    drawn[:, : task.PROMPT] = False
    rewards = message.new_tensor([task.reward(text) for text in texts])  # [B]
    versions = torch.full_like(tokens, version)                       # [B, S]
    advantage = learning.advantages(rewards, answers)                 # [B]
    return float(rewards.mean()), Rollouts(tokens, drawn, message[1], versions, advantage)


def learn(
    group: comm.Group,
    base: Transformer,
    trainers: int,
    steps: int,
    off: int = 0,
    prompts: int = 32,
    answers: int = 8,
    rate: float = 2e-3,
    seed: int = 0,
) -> LearningRun:
    """Train `base`, on texts of weights that are `off` steps older; `prompts` a step.

    Errors: ValueError unless both engines have a rank, and off is 0 or more.
    """
    rank, size = group.rank(), group.size()
    if not 0 < trainers < size or off < 0:
        wrong = f"trainers={trainers}, off={off} on {size} ranks"
        raise ValueError(f"{wrong}: use 1 to {size - 1} trainers, and off=0 or more")
    trains, writers = rank < trainers, size - trainers
    own = comm.subgroup(group, range(trainers) if trains else range(trainers, size))
    have = [*places(task.SPEC, Layout(dp=trainers, zero=3)), *([] for _ in range(writers))]
    want = [*([] for _ in range(trainers)), *places(task.SPEC, Layout(tp=writers))]
    copies = hand_over.plan(have, want)
    sent = sum(hand_over.size(copy.box) for copy in copies if copy.source == rank)
    found, dtype, count = LearningRun(sent=sent), base.head.weight.dtype, prompts * answers
    if trains:
        trainer = LearningRank(base, own, rate)
        found.weights, found.mismatch = trainer.weights, trainer.mismatch
    else:
        tensor_parallel.parallelize(base, own)
        writer = generator.Generator(base, own, count, task.LIMIT, task.END)
        found.weights = dict(base.named_parameters())
    mine = hand_over.views(have[rank], found.weights)
    theirs = hand_over.views(want[rank], found.weights)
    draws = torch.Generator("cpu").manual_seed(seed)  # the same on all ranks that generate
    message = torch.zeros(2, count, task.SPEC.context_length, dtype=torch.float64)
    waiting: list[Rollouts] = []  # texts on which nobody has trained
    for step in range(steps + off):
        if step < steps:
            with found.span(rank, "waiting"):
                comm.barrier(group)
            with found.span(rank, "hand over"):
                for bucket in hand_over.buckets(copies, BUCKET):
                    hand_over.send(bucket, mine, theirs, group, dtype)
            if not trains:
                with found.span(rank, "generate"):
                    asked = [p for p in task.prompts(prompts, draws) for _ in range(answers)]
                    message = write(writer, asked, (seed * steps + step) * count)
        if trains and 0 < off <= step:
            with found.span(rank, "train"):
                trainer.train(waiting.pop(0))
        if step < steps:
            with found.span(rank, "waiting"):
                texts = comm.broadcast(message.to(comm.device(group)), group, source=trainers)
            reward, rollouts = marked(texts, answers, max(0, step - off))
            found.rewards.append(reward)
            found.rollouts.append(rollouts)
            waiting.append(rollouts)
        if trains and off == 0:
            with found.span(rank, "train"):
                trainer.train(waiting.pop(0))
    return found
