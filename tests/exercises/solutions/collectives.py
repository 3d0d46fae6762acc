"""Solutions of the exercises on collectives."""

from torch.nn import functional as F

from shardlab import comm


def my_broadcast(x, group):
    rank, n = group.rank(), group.size()
    y, distance = x.clone(), 1
    while distance < n:
        if rank < distance and rank + distance < n:
            comm.send(y, group, to=rank + distance)
        elif distance <= rank < 2 * distance:
            y = comm.receive(x, group, source=rank - distance)
        distance *= 2
    return y


def my_reduce_scatter(x, group):
    rank, n = group.rank(), group.size()
    pieces = list(x.clone().chunk(n))
    for step in range(1, n):
        got = comm.exchange(pieces[(rank - step) % n], group, to=(rank + 1) % n, source=(rank - 1) % n)
        pieces[(rank - step - 1) % n] += got
    return pieces[rank]


def my_ring_all_reduce(x, group):
    rank, n = group.rank(), group.size()
    flat = x.flatten()
    pieces = list(F.pad(flat, (0, -len(flat) % n)).view(n, -1).clone())
    right, left = (rank + 1) % n, (rank - 1) % n
    for step in range(1, n):
        pieces[(rank - step - 1) % n] += comm.exchange(pieces[(rank - step) % n], group, to=right, source=left)
    for step in range(n - 1):
        pieces[(rank - step - 1) % n] = comm.exchange(pieces[(rank - step) % n], group, to=right, source=left)
    whole = pieces[0].new_empty(n, len(pieces[0]))
    for index, piece in enumerate(pieces):
        whole[index] = piece
    return whole.flatten()[: len(flat)].view_as(x)


def my_doubling_all_reduce(x, group):
    total, distance = x.clone(), 1
    while distance < group.size():
        partner = group.rank() ^ distance
        total = total + comm.exchange(total, group, to=partner, source=partner)
        distance *= 2
    return total
