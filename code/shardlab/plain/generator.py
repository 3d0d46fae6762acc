"""Generation, plainly: tensor-parallel ranks write texts, and cache keys and values.

Texts enter when others end: Orca, https://www.usenix.org/conference/osdi22/presentation/yu. Here
each has a row of equal length; vLLM gives out pages, https://arxiv.org/abs/2309.06180.

    model = Transformer(spec)                     # different numbers on every rank
    data_parallel.copy_from_rank_0(model, group)  # the same numbers on every rank
    tensor_parallel.parallelize(model, group)     # this rank's parts of them
    engine = generator.Generator(model, group, rows=2, limit=6, end=0)
    texts = [generator.Text(prompt, seed) for seed, prompt in enumerate(prompts)]
    engine.add(texts)                             # more texts than rows: some wait
    while engine.step():                          # a token more for each text in a row
        pass                                      # after new weights: engine.forget()

A text's first step reads its prompt (prefill), each later one the token that was drawn last
(decode). Three texts in two rows, and the tokens that each step reads:

    row 0    a b c    d      e         text 0 draws d, e and the end
    row 1    p q      x y    z    u    text 1 draws the end at once, so text 2 enters

N = ranks, B = a batch of texts that read n tokens each, S = tokens for which a row has room, V =
vocabulary, h = width, H = heads, K = key/value heads, e = head size. Whole: the same on every rank.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from shardlab import comm


class Text:
    """A prompt and the tokens drawn after it: sampled, or the likeliest where there is no seed."""

    def __init__(self, prompt: list[int], seed: int | None = None):
        self.tokens = list(prompt)
        self.log_p: list[float] = []              # in nats, of each token drawn
        self.draws = None if seed is None else torch.Generator("cpu").manual_seed(seed)
        self.row = -1                             # in the caches, as long as it is written
        self.cached = 0                           # tokens whose keys are in that row


class Cache:
    """The keys and values of one layer, of this rank's heads."""

    def __init__(self, attention: Any, rows: int, room: int):
        heads = attention.k.weight.shape[0] // attention.head_size  # K/N
        shape = rows, heads, room, attention.head_size
        self.keys = attention.k.weight.new_zeros(shape)  # [rows, K/N, S, e]
        self.values = attention.v.weight.new_zeros(shape)  # finite: 0 * NaN is NaN
        self.rows = self.positions = torch.empty(0)  # of the tokens that it reads now

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store new keys and values, and let each query see those of its text up to its own.

        q: [B, H/N, n, e]; k and v: [B, K/N, n, e]; returns [B, H/N, n, e].
        """
        row = self.rows[:, None]                  # [B, 1]
        self.keys[row, :, self.positions] = k.transpose(1, 2)  # [B, n, K/N, e]
        self.values[row, :, self.positions] = v.transpose(1, 2)
        length = int(self.positions.max()) + 1    # of the longest text
        keys = self.keys[self.rows, :, :length]   # [B, K/N, length, e]
        values = self.values[self.rows, :, :length]
        number = torch.arange(length, device=q.device)  # [length]
        seen = number <= self.positions[:, None, :, None]  # [B, 1, n, length]
        return scaled_dot_product_attention(q, keys, values, seen, enable_gqa=True)


class Generator:
    """Texts that a model writes, `rows` at a time; from now on the model can do nothing else.

    A text ends with the token `end`, or when `limit` tokens have been drawn.
    """

    def __init__(self, model: Any, group: comm.Group, rows: int, limit: int, end: int):
        if len(model.head.weight) * group.size() != model.spec.vocab_size:
            raise ValueError(f"cut the model over {group.size()} ranks by tensor_parallel")
        self.model, self.group, self.limit, self.end = model, group, limit, end
        self.room = model.spec.context_length     # S
        self.caches = []
        self.positions = torch.empty(0)           # of the tokens that are read now: [B, n]
        model.embedding.locate = lambda _: self.positions
        for block in model.blocks:
            cache = Cache(block.attention, rows, self.room)
            block.attention.attend = cache.attend
            block.attention.locate = lambda _: self.positions
            self.caches.append(cache)
        self.free = list(range(rows))
        self.waiting: list[Text] = []
        self.running: list[Text] = []

    def add(self, texts: list[Text]) -> None:
        """Queue texts. Errors: ValueError for one that has no room for its answer."""
        for text in texts:
            if not 0 < len(text.tokens) <= self.room - self.limit:
                sizes = f"{len(text.tokens)} tokens and limit={self.limit} more in {self.room}"
                raise ValueError(f"{sizes}: pass a prompt of 1 to {self.room - self.limit} tokens")
            self.waiting.append(text)

    def step(self) -> bool:
        """Draw a token for each text in a row; return whether there are texts left."""
        while self.waiting and self.free:
            self.running.append(self.waiting.pop(0))
            self.running[-1].row = self.free.pop(0)
        alike: dict[int, list[Text]] = {}         # texts by the number of tokens to read
        for text in self.running:
            alike.setdefault(len(text.tokens) - text.cached, []).append(text)
        for texts in alike.values():
            for text, log_p in zip(texts, self.read(texts), strict=True):
                self.draw(text, log_p)
        return bool(self.waiting or self.running)

    @torch.no_grad()
    def read(self, texts: list[Text]) -> Tensor:
        """Read what is not in the cache; return log p of the next tokens: [B, V], whole."""
        where = self.model.head.weight.device
        tokens = torch.tensor([text.tokens[text.cached :] for text in texts]).to(where)  # [B, n]
        first = torch.tensor([[text.cached] for text in texts], device=where)  # [B, 1]
        self.positions = first + torch.arange(tokens.shape[1], device=where)  # [B, n]
        rows = torch.tensor([text.row for text in texts], device=where)  # [B]
        for cache in self.caches:
            cache.rows, cache.positions = rows, self.positions
        x = self.model.embedding(tokens)          # [B, n, h], whole
        for block in self.model.blocks:
            x = block(x)                          # [B, n, h], whole
        logits = self.model.head(self.model.norm(x[:, -1]))  # [B, V/N]
        logits = comm.all_gather(logits.mT, self.group).mT  # [B, V], whole
        for text in texts:
            text.cached = len(text.tokens)
        return logits.double().log_softmax(-1)    # [B, V], whole

    def draw(self, text: Text, log_p: Tensor) -> None:
        """Append a token. Every rank has the same log p and seed, so none need send its choice."""
        token = int(log_p.argmax())
        if text.draws is not None:
            point = torch.rand((), generator=text.draws, device="cpu").item()
            below = log_p.exp().cumsum(0) < point  # [V]
            token = min(int(below.sum()), len(log_p) - 1)  # rounding may leave a sum below 1
        text.tokens.append(token)
        text.log_p.append(log_p[token].item())
        if token == self.end or len(text.log_p) == self.limit:
            self.running.remove(text)
            self.free.append(text.row)

    def forget(self) -> None:
        """Let texts be read again from their beginnings, after the model has got new weights."""
        for text in self.running:
            text.cached = 0
