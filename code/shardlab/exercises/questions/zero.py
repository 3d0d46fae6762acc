"""Questions on ZeRO: what each stage holds and sends, and where it stops helping."""

from dataclasses import replace
from random import Random

from shardlab.costs import collectives, memory, zero
from shardlab.costs.facts import models
from shardlab.costs.programs import BOOK
from shardlab.costs.training import Training
from shardlab.costs.units import text
from shardlab.sharding.layout import Layout

from .bank import ExamQuestion


def _held(billions: float, ranks: int, stage: int) -> float:
    """Count the bytes of states on a rank in mixed precision."""
    return sum(memory.model_states(billions * 1e9, dp=ranks, zero=stage).values())


def stages(draw: Random) -> ExamQuestion:
    """Ask for the lowest stage that leaves enough room."""
    billions, ranks = draw.choice((7, 8, 10, 13)), draw.choice((16, 32, 64))
    room = draw.choice((30, 40, 50))
    held = [_held(billions, ranks, stage) for stage in range(4)]
    first = next(stage for stage in range(4) if held[stage] <= (80 - room) * 1e9)
    listed = ", ".join(text(nbytes, "B") for nbytes in held)
    return ExamQuestion(
        level=1,
        ask=f"""{billions} billion parameters take 2 + 2 + 12 bytes each for parameters, gradients
        and optimizer, on {ranks} GPUs of 80 GB. Activations, buffers and overhead need {room} GB of
        each. What do the states take at stages 0 to 3? Which is the lowest stage that fits?""",
        answer=f"""{listed}. Stage {first} is the lowest that leaves {room} GB.""",
        rubric="""2: four numbers: which part is cut at each stage
        1: the stage, with the room subtracted""",
        wrong="16 P / N at stage 1: it cuts the optimizer's 12 bytes only.",
    )


def floor(draw: Random) -> ExamQuestion:
    """Ask for the fewest GPUs, where one stage can never do it."""
    billions, room = draw.choice((24, 30, 34, 40)), draw.choice((32, 40, 44))
    ranks = next(n for n in range(1, 1000) if _held(billions, n, 3) <= room * 1e9)
    return ExamQuestion(
        level=2,
        ask=f"""Each GPU has {room} GB for model states, and the model has {billions} billion
        parameters at 2 + 2 + 12 bytes. How many GPUs are needed at least at stage 3, and how many
        at stage 2? What is not in the {room} GB and grows with the size of a layer at stage 3, on
        any number of GPUs?""",
        answer=f"""Stage 3 holds 16 P / N, so {ranks} GPUs. Stage 2 keeps all parameters,
        {text(2e9 * billions, "B")}, on each GPU: no number suffices. Layers that are gathered to
        compute are whole, two at a time, with embedding and head.""",
        rubric="""1: the GPUs at stage 3, rounded up
        2: stage 2 has a floor of two bytes per parameter, which exceeds the room
        1: gathered layers""",
        wrong="The same number for both: what is not cut is divided, too.",
    )


def microbatches(draw: Random) -> ExamQuestion:
    """Ask for the bytes of a step with several microbatches."""
    name, ranks = draw.choice(("Llama 3 8B", "Llama 2 13B")), draw.choice((8, 16, 64))
    count = draw.choice((2, 4, 8))
    spec = models.published(name).spec
    whole = Training(spec=spec, num_microbatches=count, program=BOOK)
    runs = [replace(whole, layout=Layout(dp=ranks, zero=stage)) for stage in range(4)]
    sent = [sum(zero.sent_bytes(run).values()) for run in runs]
    listed = ", ".join(text(nbytes, "B") for nbytes in sent)
    return ExamQuestion(
        level=1,
        ask=f"""{name}, {models.num_parameters(spec) / 1e9:.2f} billion parameters, is trained on
        {ranks} ranks with 16-bit parameters and gradients, and {count} microbatches in a step.
        Stages 0 and 1 send gradients once; stages 2 and 3 cannot keep them whole, and stage 3
        gathers everything in each forward and each backward. How many bytes does a rank send in a
        step, at stages 0 to 3? Which stage would you take if the states fit at stage 1?""",
        answer=f"""(N - 1) / N · P times 4, 4, 2 m + 2 and 6 m bytes: {listed}. Stage 1, which sends
        no more than plain data parallelism, however many microbatches there are.""",
        rubric="""1: two halves at stages 0 and 1
        1: stage 2: gradients leave with each microbatch, parameters come back once
        1: stage 3: three halves for each microbatch
        1: chooses by the bytes""",
        wrong="1.5 times for stage 3: that is the factor of a single microbatch.",
    )


def hidden(draw: Random) -> ExamQuestion:
    """Ask for the tokens of stage 3, with fp32 gradients too."""
    rate, beta = draw.choice((400, 500, 600)), draw.choice((40, 160, 320))
    ratio = rate * 1e3 / beta
    return ExamQuestion(
        level=2,
        ask=f"""GPUs reach {rate} TFLOP/s, and a rank's buffer travels at {beta} GB/s. Stage 3
        gathers parameters in 16 bits and sends gradients in fp32. Parameters and messages of a
        layer travel while others compute; leave out latency. How many tokens per microbatch hide
        everything in forward, and how many in backward? Compare with 16-bit gradients. Does a
        second microbatch help where there are too few?""",
        answer=f"""Forward: 2 P T / F against 2 P / β, so F / β = {ratio:,.0f} tokens. Backward:
        4 P T / F against (2 + 4) P / β, so 1.5 F / β = {1.5 * ratio:,.0f}, which decides. With
        16-bit gradients both are {ratio:,.0f}. A second microbatch waits for all its messages
        again.""",
        rubric="""1: forward: one gather of 2 bytes behind 2 P T
        2: backward: a gather of 2 and a reduce-scatter of 4 bytes behind 4 P T
        1: every microbatch must have the tokens""",
        wrong="2 F / β, as in data parallelism: there fp32 gradients travel in both halves.",
    )


def hybrid(draw: Random) -> ExamQuestion:
    """Ask what sharding within servers holds and sends between them."""
    billions, servers = draw.choice((8, 13, 20)), draw.choice((4, 8, 16))
    held = _held(billions, 8, 3)
    outside = collectives.ring_all_reduce(2e9 * billions / 8, servers).sent
    everywhere = _held(billions, 8 * servers, 3)
    return ExamQuestion(
        level=3,
        ask=f"""{servers} servers of 8 GPUs train {billions} billion parameters, at 2 + 2 + 12
        bytes. Stage 3 shards within each server, and servers hold copies. What states does a GPU
        hold, and what does it send to other servers in a step of one microbatch? What would it hold
        with stage 3 over all GPUs? Say when you would take which.""",
        answer=f"""16 P / 8: {text(held, "B")}. Between servers each GPU all-reduces its eighth of
        the gradients, 2 P / 8 bytes: it sends {text(outside, "B")}. Over all GPUs it would hold
        {text(everywhere, "B")}, and every gather would cross the network, in rings of
        {8 * servers}. Take the hybrid where its states fit beside the activations.""",
        rubric="""1: an eighth of the states
        2: only an all-reduce of an eighth of the gradients leaves the server
        1: memory against messages between servers, and a decision""",
        wrong="All three collectives cross the network: they stay among the 8 GPUs that share.",
    )


ORDER = ExamQuestion(
    level=2,
    ask="""Before the first step memory is as high as without sharding, and the loss does not fall.
    Which line is at the wrong place, and how does it explain both?

    ```python
    optimizer = torch.optim.AdamW(model.parameters())
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    ```""",
    answer="""The optimizer must come last. `fully_shard` replaces the parameters by pieces, so an
    optimizer that was made before it holds the whole old tensors: they stay in memory, get no
    gradients, and their update changes nothing that the model uses.""",
    rubric="""1: the optimizer's line
    2: sharding replaces the parameters; the optimizer holds the old ones
    1: explains both symptoms by that""",
    wrong="Blocks are sharded twice by the last line: it takes only what no block has.",
)

ROOT = ExamQuestion(
    level=2,
    ask="""On CPUs, in fp32, only the blocks of a model are given to `fully_shard`, one by one; no
    line follows for the model itself. Nothing clips gradients, and there is no error. Which
    parameters are wrong, what happens to them step by step on different ranks, and why do the
    blocks hide it?""",
    answer="""Embedding, last norm and head. They stay ordinary tensors, so nobody averages their
    gradients: each rank updates them with its own samples, and the copies drift apart. The blocks
    are still one model for all ranks, and each rank's loss falls, because its own head learns.""",
    rubric="""1: what is in no block
    2: gradients are not averaged, so ranks drift apart
    1: no error, and losses fall""",
    wrong="They are not trained: they are, each copy with other samples.",
)

NORM = ExamQuestion(
    level=2,
    ask="""Ranks of ZeRO clip their pieces of the averaged gradient so, to a limit of 1. Two ranks
    have pieces of norm 3 and 4: how long is the clipped gradient, and does its direction change?
    On 64 ranks all pieces are equally long: how long is it there after clipping, and from which
    true norm on is it clipped at all? Repair the line.

    ```python
    norm = all_reduce(piece.norm(), group)         # a sum over ranks
    piece *= min(1.0, 1.0 / norm)
    ```""",
    answer="""Both multiply by 1/7, so the direction stays; the true norm is 5, and 5/7 is left. 64
    pieces of norm n have the true norm 8 n and the sum 64 n: after clipping 1/8 is left, and it
    begins at a true norm of 1/8. Norms do not add, squares do: `all_reduce(piece.norm() ** 2,
    group).sqrt()`. As it stands a run learns more slowly on more ranks.""",
    rubric="""1: 5/7, by one factor for all pieces
    2: 1/8 twice: the root of the ranks too short, and clipped too early
    1: the root of the summed squares""",
    wrong="The mean of the norms, to cancel the ranks: that clips too late, by the same root.",
)

HOLD = ExamQuestion(
    level=2,
    ask="""A step at stage 2 has 8 microbatches. Somebody puts the first seven into `no_sync`, and
    reports: "stage 2 with the messages of stage 1". What happens to memory, and is this still
    stage 2? When is it worth it, and when would you rather leave `no_sync` out?""",
    answer="""Gradients add up whole on each rank until the last microbatch, so memory holds all of
    them: in bytes held and sent that is stage 1. It is worth it where they fit, and messages are
    waited for. Without `no_sync` the gradients of each microbatch leave at once: (m + 1) / 2 times
    the bytes, 4.5 here, and no harm as long as each microbatch hides them.""",
    rubric="""2: gradients are whole, as at stage 1
    1: the bytes without it
    1: memory against messages that are not hidden""",
    wrong="It saves messages for nothing: the price is the memory that stage 2 was taken for.",
)

WAITS = ExamQuestion(
    level=3,
    ask="""At stage 3 every microbatch has half of the tokens that would hide its messages. Which of
    these lowers the share of waiting, and which fits into memory: twice as many microbatches; twice
    as many GPUs at the same global batch and microbatches; microbatches of twice the tokens, half
    as many; stage 1 in place of 3? Leave out latency.""",
    answer="""Twice as many microbatches: each waits as before, so the share stays. Twice as many
    GPUs, at as many microbatches: half of the tokens in each and as many bytes, so more waiting.
    Larger microbatches hide everything, and need their activations' memory; recomputation may
    make the room. Stage 1 sends once for all microbatches, and needs the memory of whole
    parameters and gradients.""",
    rubric="""1: microbatches do not help at stage 3
    1: more GPUs make it worse
    1: larger microbatches, with their memory
    1: stage 1, with its memory""",
    wrong="Accumulate, as in data parallelism: there the wait comes once a step.",
)

FREE = ExamQuestion(
    level=2,
    ask="""Why does stage 1 cut memory so much and send nothing more? Where is the catch, if there
    is one?""",
    answer="""An all-reduce is a reduce-scatter and an all-gather. Between them each averaged
    gradient is on one rank, which can update its piece with its own states; then new parameters are
    gathered in place of gradients, as many numbers. The catch: the gather must wait for the update,
    and a switch that adds makes an all-reduce cheaper, but no gather.""",
    rubric="""2: the two halves, and the update between them
    1: parameters travel in place of gradients
    1: a condition: equal bits of both, ranks that add, or when the gather can be hidden""",
    wrong="Fewer bytes are sent because states are cut: states are never sent.",
    then="Gradients are now in fp32 and parameters in 16 bits. What is the factor?",
)

PIECEWISE = ExamQuestion(
    level=3,
    ask="""ZeRO cuts a flat buffer wherever the ranks' borders lie, through the middle of a matrix.
    Why may it do so with Adam? For which optimizers may it not?""",
    answer="""Adam's new weight depends on the old one, its gradient and its two moments alone, so
    any cut gives the same result. An optimizer that needs more than one number at a time, such as
    the norm of a layer or a whole matrix, needs communication, or cuts at the borders of
    matrices.""",
    rubric="""2: Adam treats each number by itself
    1: a counterexample
    1: what that optimizer needs: whole matrices, or a sum over ranks""",
    wrong="Because the buffer is gathered before the update: it is gathered after it.",
    then="Clipping by the norm of all gradients also needs all numbers. Why is it easy?",
)

WRITTEN = (stages, microbatches, floor, hidden, hybrid, ORDER, ROOT, NORM, HOLD, WAITS)
ORAL = (FREE, PIECEWISE)
