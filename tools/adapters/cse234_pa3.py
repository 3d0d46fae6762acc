"""Assignment 3 of UC San Diego's CSE 234, expert parallelism. Copy this file beside moe.py, then

    echo "from cse234_pa3 import forward; MoE_EP.forward = forward" >> moe.py
    mpiexec -n 4 python -m pytest --with-mpi test_moe.py -k ep
"""

import torch
from torch.nn.functional import pad

from shardlab import launch
from shardlab.ranks.expert_parallel.dispatch import TokenDispatcher


def forward(self, x):
    """Send every token to the ranks of its experts, and add up what comes back."""
    chosen, weights = map(torch.tensor, self.router(x, self.topk))
    wide = max(self.input_dim, self.output_dim)  # what returns is as wide as what leaves

    def expert(rows, there, scales):
        y = torch.tensor(self.expert(rows[:, : self.input_dim].numpy()))
        weight = (scales * (there == self.rank)).sum(1, keepdim=True)
        return pad(weight * y, (0, wide - self.output_dim))

    def on_rank(group):
        dispatcher = TokenDispatcher(group=group, first=0, span=1)
        tokens = pad(torch.tensor(x), (0, wide - self.input_dim))
        sums, _ = dispatcher(tokens, chosen, weights, expert)
        return sums[:, : self.output_dim].numpy()

    return launch.run(on_rank, world_size=self.world_size)[self.rank]
