"""Solutions of the exercises on interconnects."""


def my_network_share(num_cards, gigabits, num_gpus):
    return num_cards * gigabits * 1e9 / 8 / num_gpus


def my_message_seconds(nbytes, hops):
    if not hops:
        return 0
    rates, latencies = zip(*hops, strict=True)
    return max(latencies) + nbytes / min(rates)


def my_two_levels(nbytes, num_nodes, gpus, inside, across):
    one_way = (gpus - 1) / gpus * nbytes / inside
    share = nbytes / gpus
    return one_way + 2 * (num_nodes - 1) / num_nodes * share / across + one_way


def my_fair_rates(capacities, paths):
    left, rates = dict(capacities), [None] * len(paths)
    while None in rates:
        rising = {link: [i for i, path in enumerate(paths) if rates[i] is None and link in path] for link in left}
        level, link = min((left[link] / len(users), link) for link, users in rising.items() if users)
        for i in rising[link]:
            rates[i] = level
            for each in paths[i]:
                left[each] -= level
    return rates
