"""Solution of the exercise on record and replay."""


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
