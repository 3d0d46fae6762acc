"""Assignment 2 of UC San Diego's CSE 234, second part.

Copy this file to model/func_impl.py and to data/data_parallel_preprocess.py, then

    python -m pytest tests/test_data_split.py
    mpiexec -n 8 python -m pytest --with-mpi tests/test_get_info.py
    mpiexec -n 4 python -m pytest --with-mpi tests/test_transformer_*.py
"""

import torch

from shardlab import comm, launch
from shardlab.sharding.deal import deal
from shardlab.sharding.layout import Layout, coordinates, together


def split_data(x_train, y_train, mp_size, dp_size, rank):
    """Return the samples of this rank's replica."""
    place = coordinates(rank, Layout(tp=mp_size, dp=dp_size))
    mine = list(deal(len(x_train), dp_size))[place["dp"]]
    return x_train[mine], y_train[mine]


def get_info(comm, rank, mp_size, dp_size, fc_layer, in_dim, out_dim):
    """Return this rank's place on both axes, the two communicators, and its part of a layer."""
    layout = Layout(tp=mp_size, dp=dp_size)
    place = coordinates(rank, layout)
    groups = {}
    for axis in ("tp", "dp"):
        members = next(ranks for ranks in together(layout, (axis,)) if rank in ranks)
        groups[axis] = comm.Create_group(comm.Get_group().Incl(members))
    by_inputs, by_outputs = (in_dim // mp_size, out_dim), (in_dim, out_dim // mp_size)
    own = by_inputs if fc_layer == "fc_o" else by_outputs
    return place["tp"], place["dp"], groups["tp"], groups["dp"], *own


def _by_columns(collective, x, ranks):
    """Call a collective on the last dim of an array; the group is all ranks, as in the tests."""

    def on_rank(group):
        columns = torch.tensor(x).movedim(-1, 0)
        return collective(columns, group).movedim(0, -1).numpy()

    return launch.run(on_rank, world_size=ranks.Get_size())[ranks.Get_rank()]


def naive_collect_forward_input(x, mp_comm, mp_size):
    """Concatenate the columns of all ranks."""
    return _by_columns(comm.all_gather, x, mp_comm)


def naive_collect_forward_output(out, mp_comm, mp_size):
    """Concatenate the columns of all ranks."""
    return _by_columns(comm.all_gather, out, mp_comm)


def naive_collect_backward_output(output_grad, mp_group_idx, mp_size):
    """Keep this rank's columns."""
    return output_grad[..., list(deal(output_grad.shape[-1], mp_size))[mp_group_idx]]


def naive_collect_backward_x(grad_x, mp_comm, mp_size):
    """Sum over the ranks, and keep this rank's columns."""
    return _by_columns(comm.reduce_scatter, grad_x, mp_comm)
