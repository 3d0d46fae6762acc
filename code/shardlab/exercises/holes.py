"""The holes of the workshop notebooks: lines of the plain files that a student writes.

A hole stands where the idea of a method is: a collective, a divisor, a slice, an order. Everything
else of a notebook comes from the chapter and from the plain file.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Hole:
    """A line of a plain file, of which `code` is as much as occurs only once."""

    code: str
    ask: str  # what must happen there


HOLES = {
    "data_parallel": (
        Hole(
            "tensor.copy_(comm.broadcast(tensor, group))",
            "overwrite `tensor` in place with its numbers on rank 0",
        ),
        Hole(
            "return batch.tensor_split(group.size())[group.rank()]",
            "return this rank's samples; 7 samples on 3 ranks are 3, 2 and 2",
        ),
        Hole(
            "partial = share * parameter.grad",
            "set `partial` to this rank's term of the mean over all samples",
        ),
        Hole(
            "parameter.grad = comm.all_reduce(partial, group)",
            "replace the gradient by the sum of all ranks' `partial`",
        ),
    ),
    "zero": (
        Hole(
            "row = rows(p.data, group)[group.rank()]",
            "set `row` to this rank's piece of p.data: one of the N rows that `rows` makes",
        ),
        Hole(
            "(new,) = comm.reduce_scatter(rows(p.grad, self.group), self.group)",
            "set `new`, [P/N], to this rank's row of the gradient, summed over the ranks",
        ),
        Hole(
            "new = new + piece.grad",
            "another layer uses p, too, and its gradient is in piece.grad: change `new`",
        ),
        Hole(
            "whole = comm.all_gather(self.piece[p][None], self.group)",
            "set `whole`, [N, P/N], to the pieces of all ranks",
        ),
        Hole(
            "(share * loss(x, targets)).backward()   # all gradients",
            "go back from this rank's part of the mean loss over all samples",
        ),
        Hole(
            "go_back(layer(x), gradient)",
            "forward kept no graph: compute the layer's gradients from x and `gradient`",
        ),
    ),
    "tensor_parallel": (
        Hole(
            "return comm.all_reduce(grad, ctx.group), None",
            "return the whole gradient of x, and None for the group",
        ),
        Hole(
            "return grad, None",
            "return the gradient of this rank's x, and None for the group",
        ),
        Hole(
            "self.weight = shard(linear.weight, 1, group)",
            "set self.weight to this rank's part: all outputs, some inputs",
        ),
        Hole(
            "x = SumOverRanks.apply(x, self.group)",
            "make x whole; it is this rank's term of a sum",
        ),
        Hole(
            "return x if self.bias is None else x + self.bias",
            "return the output; self.bias is whole on every rank, or None",
        ),
        Hole(
            "row = tokens - size * group.rank()",
            "set `row` to each token's row, counted from the first one of this rank",
        ),
    ),
    "context_parallel": (
        Hole(
            "last = last.flip(0)",
            "order the parts of the second half so that all ranks have as much to compute",
        ),
        Hole(
            "in_document = starts[:, None] <= order",
            "queries down, keys across: is the key in the query's document, or after it?",
        ),
        Hole(
            "not_later = order <= order[:, None]",
            "queries down, keys across: is the key the query's own token, or before it?",
        ),
        Hole(
            "mine = comm.reduce_scatter(partial, ctx.group)",
            "set `mine` to this rank's part of the sum over the ranks' `partial`",
        ),
        Hole(
            "ctx.way_back = group, join, split",
            "keep what backward gives to AllToAll: the group, where to split, where to join",
        ),
    ),
    "ring_attention": (
        Hole(
            "y = y * (lse - new).exp()",
            "rescale y: its softmax had the sum exp(lse), and now the sum is exp(new)",
        ),
        Hole(
            "p = (scores - new).exp()",
            "set `p` to this block's part of the softmax over all keys seen so far",
        ),
        Hole(
            "ds = p * (dp - shared)",
            "set `ds`, the gradient of the scores, from p, dp and `shared`",
        ),
        Hole(
            "gradient = gradient + torch.stack([dk, dv])",
            "let the block's gradient, which travels with it, grow by dk and dv",
        ),
        Hole(
            "source = group.rank() - turn",
            "whose block is here after `turn` turns? set `source` to that rank; -1 is the last one",
        ),
    ),
    "linear_attention": (
        Hole(
            "error = values[:, :, :, token] - key @ state",
            "set `error` to what the state must still learn: the new values less the stored ones",
        ),
        Hole(
            "both: Tensor = m @ first + new",
            "set `both` to m and b of the map that is `first`, then `second`",
        ),
        Hole(
            "state = then(earlier, state)",
            "join the map of the earlier ranks and this one; the order matters",
        ),
        Hole(
            "before = Shift.apply(state, start, group, 1)",
            "set `before` to the map of the ranks before this one; `state` is that of these and it",
        ),
        Hole(
            "dx = comm.exchange(gradient, ctx.group, to=before, source=after)",
            "set `dx` to the gradient that belongs to this rank's x",
        ),
    ),
    "expert_parallel": (
        Hole(
            "holder = number // (count // ep)",
            "set `holder` to the neighbour with this expert: the first ones are on rank 0",
        ),
        Hole(
            "token = order // k",
            "set `token` to the token of each row; token 0 has the rows 0 to k - 1",
        ),
        Hole(
            "received = comm.all_to_all(sends, group)",
            "tell every rank how many rows come: set `received`, [E]",
        ),
        Hole(
            "rows = AllToAllRows.apply(rows, group, here, there)",
            "send the rows home again",
        ),
        Hole(
            "rows = rows * weights[order, None].to(rows.dtype)",
            "multiply each row by its weight; `weights` are not in the order of the rows",
        ),
        Hole(
            'group = self.replicas if ".experts." in name else self.group',
            "set `group` to the ranks that hold this parameter",
        ),
    ),
    "pipeline": (
        Hole(
            "warm_up = stage.after",
            "how many forwards run before the first gradient can be back?",
        ),
        Hole(
            "self.outputs.send(y.detach())",
            "send the numbers of this stage's output, without their history",
        ),
        Hole(
            "y = share * self.loss(y, targets)",
            "set `y` to this microbatch's part of the mean loss over the batch",
        ),
        Hole(
            "x, y = self.kept.pop(0)",
            "take the input and output whose gradient comes next out of self.kept",
        ),
        Hole(
            "self.gradients.send(x.grad)",
            "send the stage before what it needs to go back",
        ),
        Hole(
            "self.tied.grad += theirs",
            "the first and the last stage use one matrix: what is its gradient?",
        ),
    ),
}
