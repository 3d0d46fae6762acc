"""Solution of the exercise on placing ranks."""


def my_two_levels(nbytes, num_nodes, gpus, inside, across):
    one_way = (gpus - 1) / gpus * nbytes / inside
    share = nbytes / gpus
    return one_way + 2 * (num_nodes - 1) / num_nodes * share / across + one_way
