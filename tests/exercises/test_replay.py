"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

from .grading import Chapter, Graded
from .solutions import replay as solutions

CHAPTER = Chapter("replay", solutions)
mistake = CHAPTER.mistake


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
