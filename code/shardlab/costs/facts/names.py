"""What to say about a name that is not known: which known ones come nearest."""

import re
from collections.abc import Mapping
from difflib import get_close_matches

from shardlab.files.arguments import checked

MOST = 3  # names that are called near
MODEL = re.compile(r"(?=.*\d)(?=.*[a-z])")  # a word such as h200, which tells more than "dgx"


@checked
def unknown(kind: str, name: str, known: Mapping[str, str], way_out: str = "") -> ValueError:
    """Return the error for an unknown name: the nearest ones, the way out, and all names.

    known: name -> other words for it, such as the chip of a node. Names may have commas in them.
    """
    near = _nearest(name, known)
    nearest = f"; the nearest: {'; '.join(near)}" if near else ""
    more = f"; {way_out}" if way_out else ""
    every = "; ".join(known)
    return ValueError(f"no facts about the {kind} {name!r}{nearest}{more}; known: {every}")


def _nearest(name: str, known: Mapping[str, str]) -> list[str]:
    """Return the names that share most words with models in them; else those spelled alike."""
    wanted = _words(name)
    shared = {each: wanted & _words(f"{each} {more}") for each, more in known.items()}
    scores = {
        each: (sum(bool(MODEL.match(word)) for word in words), len(words))
        for each, words in shared.items()
    }
    best = max(scores.values(), default=(0, 0))
    if best[0]:
        return [each for each, score in scores.items() if score == best][:MOST]
    spelled = {each.lower(): each for each in known}
    return [spelled[each] for each in get_close_matches(name.lower(), spelled, MOST)]


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.lower()))
