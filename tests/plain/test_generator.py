"""The plain file of generation: tokens and log-probabilities are those of the whole model, which has no cache."""

import inspect
import sys

import cloudpickle
import pytest
import torch

from shardlab.launch import RankError, run
from shardlab.plain import data_parallel, generator, tensor_parallel

from ..rank_types import rank_type
from . import lesson

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest

SOURCE = inspect.getsource(generator)
END, LIMIT, CHANGED = 0, 6, 3  # two as in the docstring; after three steps the model gets other weights
PROMPTS = [[5, 7, 9], [11], [3, 3], [40, 41, 42, 43, 44, 45, 46], [8, 1, 30], [47, 2]]
WAYS = [(style, sampled) for style in lesson.SPECS for sampled in (True, False)]


def model_of(style, version):
    return lesson.build(style, False, seed=version)


def seed_of(number, sampled):
    return 10 + number if sampled else None


def write(group, source, style, sampled):
    """Run the docstring's lines on this rank: texts, steps, and how many tokens were read, and should have been.

    After CHANGED steps the model gets other numbers, and all is read again. A text: tokens, log p, how many were drawn
    before.
    """
    module, texts, steps, lengths, read, again = lesson.load("generator", source), [], [], [], [], []

    def text(prompt, number):
        texts.append(made(prompt, seed_of(number, sampled)))
        return texts[-1]

    def between(engine):
        steps.append(1)
        if len(steps) == CHANGED:
            other = model_of(style, 1)
            tensor_parallel.parallelize(other, group)
            engine.model.load_state_dict(other.state_dict())
            again.extend(len(text.tokens) - 1 for text in engine.running)
            engine.forget()
            lengths.extend(len(text.log_p) for text in texts)

    def transformer(_):
        model = model_of(style, group.rank())
        model.embedding.register_forward_hook(lambda _, given, x: read.append(given[0].numel()))
        return model

    made, module.Text = module.Text, text
    lines = lesson.changed(lesson.usage(source), "pass ", "between(engine) ")
    variables = {
        "Transformer": transformer,
        "generator": module,
        "group": group,
        "prompts": PROMPTS,
        "spec": None,
        "between": between,
    }
    variables |= {"data_parallel": data_parallel, "tensor_parallel": tensor_parallel}
    exec(lines, variables)
    drawn = [(text.tokens, text.log_p, before) for text, before in zip(texts, lengths, strict=True)]
    return drawn, len(steps) + 1, sum(read), sum(len(text.tokens) - 1 for text in texts) + sum(again)


@torch.no_grad()
def alone(style, sampled, number, before):
    """Tokens and log p of one text, by a whole model that reads all of it for each token."""
    draws, tokens, found = torch.Generator().manual_seed(10 + number), list(PROMPTS[number]), []
    while len(found) < LIMIT and (not found or tokens[-1] != END):
        model = model_of(style, len(found) >= before)
        log_p = model(torch.tensor([tokens]))[0, -1].log_softmax(-1)
        below = log_p.exp().cumsum(0) < torch.rand((), generator=draws)
        tokens.append(int(below.sum()) if sampled else int(log_p.argmax()))
        found.append(float(log_p[tokens[-1]]))
    return tokens, found


def same(drawn, style, sampled):
    """Whether each text has the tokens that one process draws, with its log p."""
    for number, (tokens, log_p, before) in enumerate(drawn):
        expected, values = alone(style, sampled, number, before)
        if tokens != expected or not torch.allclose(torch.tensor(log_p), torch.tensor(values), rtol=0, atol=1e-12):
            return False
    return True


def fewest_steps(drawn, rows):
    """Steps if each text takes the row that is free first."""
    busy = [0] * rows
    for tokens, log_p, _ in drawn:
        busy[busy.index(min(busy))] += len(log_p)
        assert len(tokens) > len(log_p)
    return max(busy)


def all_ways(group):
    return {way: write(group, SOURCE, *way) for way in WAYS}


@pytest.fixture(scope="module", params=lesson.WORLD_SIZES)
def written(request):
    return run(all_ways, world_size=request.param, ranks=rank_type(request.param))


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parity("trainer_generator", "continuous batching with a cache: tokens and log p of the whole model")
def test_texts_are_those_of_the_whole_model_without_a_cache(written, way):
    """While other texts enter and leave beside them, and after the weights have changed."""
    drawn, steps, read, once = written[0][way]
    assert same(drawn, *way)
    assert read == once, "each token is read once, but for those that new weights read again"
    assert steps == fewest_steps(drawn, 2)
    assert {len(log_p) for _, log_p, _ in drawn} != {LIMIT} or way[1] is False, "no text ends by itself"
    assert all(rank[way] == written[0][way] for rank in written), "every rank draws the same tokens"


def test_a_text_does_not_depend_on_the_rows():
    """Its seed is its own, and it sees no other text, in whatever row it is."""
    texts = [run(rows_and_texts, rows, world_size=2, ranks="threads")[0] for rows in (1, 2, 6)]
    assert texts[0] == texts[1] == texts[2]


def rows_and_texts(group, rows):
    model = model_of("llama", 0)
    tensor_parallel.parallelize(model, group)
    engine = generator.Generator(model, group, rows, LIMIT, END)
    texts = [generator.Text(prompt, 7) for prompt in PROMPTS]
    engine.add(texts)
    while engine.step():
        pass
    return [text.tokens for text in texts]


def cached_bytes(group):
    model = model_of("llama", 0)
    tensor_parallel.parallelize(model, group)
    engine = generator.Generator(model, group, 5, LIMIT, END)
    return sum(x.nbytes for cache in engine.caches for x in (cache.keys, cache.values))


@pytest.mark.parametrize("ranks", lesson.WORLD_SIZES)
@pytest.mark.counted("trainer_generator", "bytes of the key and value cache on a rank")
def test_the_cache_takes_the_bytes_of_the_formula(ranks):
    """2 * layers * rows * K/N * S * e * 8."""
    spec = lesson.SPECS["llama"]
    predicted = 2 * spec.num_layers * 5 * spec.kv_heads // ranks * spec.context_length * spec.head_size * 8
    assert run(cached_bytes, world_size=ranks, ranks="threads") == [predicted] * ranks


# ---- wrong versions --------------------------------------------------------------------------------------------------

WRONG = {  # what went wrong: (what stands there, what stands there then)
    "positions begin again at 0": ("self.positions = first + torch", "self.positions = 0 * first + torch"),
    "a query sees what comes after it": (
        "number <= self.positions[:, None, :, None]",
        "number <= self.positions.max() + 0 * self.positions[:, None, :, None]",
    ),
    "a query does not see its own key": ("number <= self", "number < self"),
    "one cache for all layers": (
        "            self.caches.append(cache)",
        "            self.caches.append(cache)\n            block.attention.attend = self.caches[0].attend",
    ),
    "rotation by positions from 0": ("block.attention.locate = lambda _: self.positions", "pass"),
    "keys go to the first rows": ("row = self.rows[:, None]", "row = torch.arange(len(q))[:, None]"),
    "rows are taken while they are used": ("self.free.pop(0)", "self.free[0]"),
    "the first rank's words only": ("comm.all_gather(logits.mT, self.group).mT", "logits"),
    "log p of the token before": ("x[:, -1]", "x[:, 0]"),
    "each rank draws for itself": ("generator=text.draws, ", ""),
    "two texts draw from one seed": (".manual_seed(seed)", ".manual_seed(0)"),
    "new weights, old keys": ("            text.cached = 0\n", "            pass\n"),
    "nothing is kept": ("            text.cached = len(text.tokens)", "            pass"),
}


def right(group, source):
    """Tell whether a version draws what one process does, and reads a token once; positions turn keys."""
    drawn, _, read, once = write(group, source, "llama", True)
    return same(drawn, "llama", True) and read == once


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_version_is_noticed(what):
    found = lesson.verdict(right, lesson.changed(SOURCE, *WRONG[what]), world_size=2)
    assert found is False, found


@pytest.mark.parametrize(
    ("prompt", "said"),
    [([], "0 tokens and limit=6 more in 24: pass a prompt of 1 to 18 tokens"), ([1] * 19, "19 tokens and limit=6")],
)
def test_a_prompt_without_room_is_refused(prompt, said):
    def call(group):
        generator.Generator(model_of("gpt2", 0), group, 1, LIMIT, END).add([generator.Text(prompt)])

    with pytest.raises(RankError, match=said):
        run(call, world_size=1)


def test_a_model_that_is_not_cut_is_refused():
    def call(group):
        generator.Generator(model_of("gpt2", 0), group, 1, LIMIT, END)

    with pytest.raises(RankError, match="cut the model over 2 ranks"):
        run(call, world_size=2)
