"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

from fractions import Fraction

from .grading import Chapter, Graded
from .solutions import replay as solutions

CHAPTER = Chapter("replay", solutions)
mistake, right = CHAPTER.mistake, CHAPTER.right


class TestExercises(Graded):
    chapter = CHAPTER


# ---- mistakes --------------------------------------------------------------------------------------------------------

OVERFULL, FAIR = "no link is overfull", "no message could get more fairly"


@mistake("fair_rates", FAIR, at="1 rank, a message that cannot use its share", says="[3, 1]")
def shares_each_link_equally(capacities, paths):
    users = {link: sum(link in path for path in paths) for link in capacities}
    return [min(capacities[link] / users[link] for link in path) for path in paths]


@mistake("fair_rates", OVERFULL, FAIR, at="1 rank, two on one link", says="at most 6 on a")
def shares_nothing(capacities, paths):
    return [min(capacities[link] for link in path) for path in paths]


@mistake("fair_rates", FAIR, at="1 rank, one link after the other fills", says="0.5, 2.5")
def fills_two_links_and_shares_the_rest(capacities, paths):
    left, rates = dict(capacities), [None] * len(paths)
    for _ in range(2):
        users = {link: [i for i, path in enumerate(paths) if rates[i] is None and link in path] for link in left}
        if rising := [(left[link] / len(them), link) for link, them in users.items() if them]:
            level, link = min(rising)
            for i in users[link]:
                rates[i] = level
                for each in paths[i]:
                    left[each] -= level
    users = {link: sum(rates[i] is None and link in path for i, path in enumerate(paths)) for link in left}
    shared = [min(left[link] / max(1, users[link]) for link in path) for path in paths]
    return [shared[i] if rate is None else rate for i, rate in enumerate(rates)]


@mistake("fair_rates", FAIR, at="1 rank, a link that two fill later", says="[6.25, 1, 9.75]")
def shares_equally_what_is_left_again_and_again(capacities, paths):
    left, rates = dict(capacities), [0.0] * len(paths)
    for _ in range(100):
        rising = [path for path in paths if all(left[link] > 1e-12 for link in path)]
        users = {link: sum(link in path for path in rising) for link in left}
        more = [min(left[link] / users[link] for link in path) if path in rising else 0.0 for path in paths]
        for i, path in enumerate(paths):
            rates[i] += more[i]
            for link in path:
                left[link] -= more[i]
    return rates


@mistake("fair_rates", FAIR, at="1 rank, two on one link", says="[6, 0]")
def serves_the_first_first(capacities, paths):
    left, rates = dict(capacities), []
    for path in paths:
        rates.append(min(left[link] for link in path))
        for link in path:
            left[link] -= rates[-1]
    return rates


@mistake("fair_rates", OVERFULL, FAIR, at="1 rank, one message", says="None")
def returns_nothing(capacities, paths):
    solutions.my_fair_rates(capacities, paths)


# ---- answers that are right, and not near the solution ---------------------------------------------------------------


@right("fair_rates")
def numbers_fractions(capacities, paths):
    rates = enumerate(solutions.my_fair_rates(capacities, paths))
    return {number: Fraction(rate) for number, rate in rates}.values()
