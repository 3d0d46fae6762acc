"""A question that asks for a guess first: a form run by guess.js on a page, widgets in a kernel."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from IPython.display import HTML, display

from .kept import keep, kept
from .page import quoted
from .questions import Choice, Number

CHECK, AGAIN = "Check my guess", "Guess again"  # the button, before the first guess and after it
BEFORE = "Your guess of {date}: {guess}."
_made: set[str] = set()  # guesses of this kernel, also where no record can be kept


def number(
    text: str,
    *,
    answer: float,
    name: str,
    unit: str | tuple[str, str] = "",
    within: float = 1.1,
    why: str = "",
) -> Guess:
    """Ask for a number, which is judged by its ratio to `answer`.

    name: identifies the question in the whole book. unit: follows the number; ("GPU", "GPUs") for
    one and for many. within: the factor up to which a guess counts as close. why: a sentence that
    is shown with the answer. Raises ValueError for an answer that is not above zero.
    """
    units = (unit, unit) if isinstance(unit, str) else unit
    return Guess(
        Number(name=name, text=text, why=why, answer=float(answer), units=units, within=within)
    )


def choice(text: str, options: Sequence[str], *, answer: str, name: str, why: str = "") -> Guess:
    """Ask for one of `options`. Errors: ValueError when `answer` is not among them."""
    return Guess(Choice(name=name, text=text, why=why, answer=answer, options=tuple(options)))


class NotGuessed(RuntimeError):
    """A guess that a cell waits for; the message is all that a notebook shows."""

    def _render_traceback_(self, *_: Any) -> list[str]:
        return [str(self)]


def made(name: str) -> None:
    """Let a cell go on once the question `name` has a guess. Errors: NotGuessed before."""
    if name not in _made and kept(name) is None:
        raise NotGuessed(f"Guess first: the form above waits for your guess ({name}).")


@dataclass(frozen=True)
class Guess:
    """A question as the reader sees it."""

    question: Number | Choice

    def html(self) -> str:
        """Return the form for a page; without JavaScript question and folded answer remain."""
        asked = self.question
        rules = {
            "name": asked.name,
            "ask": asked.ask,
            "again": AGAIN,
            "before": BEFORE,
            **asked.rules(),
        }
        inputs = number_inputs(asked) if isinstance(asked, Number) else choice_inputs(asked)
        return (
            f"<div class='guess' data-guess='{packed(rules)}'>"
            f'<form novalidate autocomplete="off">{inputs}</form>'
            f'<p class="guess-result" id="guess-{asked.name}-result"'
            f' role="status" aria-live="polite"></p>'
            f"{self.folded()}</div>"
        )

    def folded(self, state: str = "") -> str:
        """Return the folded answer with its reason; `state` "open" unfolds it."""
        answer, why = html.escape(self.question.solution), html.escape(self.question.why)
        words = f"<p><strong>{answer}</strong><br>{why}</p>"
        return (
            f'<details class="guess-answer" {state}><summary>The answer</summary>{words}</details>'
        )

    def widget(self) -> Any:
        """Return the form for a kernel: a box of ipywidgets that keeps guesses in a file."""
        import ipywidgets as widgets  # here, for the build of a page needs none

        entry = live_entry(self.question)
        button = widgets.Button(description=CHECK)
        result = widgets.HTML()
        answer = widgets.HTML(self.folded())

        def check(_: object) -> None:
            given = (entry.value or "").strip()
            try:
                sentence = self.question.judge(given)
            except ValueError as what_to_do:
                result.value = announced(str(what_to_do))
                return
            keep(self.question.name, given)
            _made.add(self.question.name)
            button.description = AGAIN
            result.value = announced(sentence)
            answer.value = self.folded("open")

        button.on_click(check)
        self._recall(entry, button, result)
        question = widgets.HTML(f"<b>{html.escape(self.question.text)}</b>")
        return widgets.VBox([question, entry, button, result, answer])

    def _recall(self, entry: Any, button: Any, result: Any) -> None:
        """Show the guess of an earlier day, unless the question has changed and cannot read it."""
        before = kept(self.question.name)
        if before is None:
            return
        try:
            guess = self.question.shown(before.given)
        except ValueError:
            return
        words = BEFORE.format(date=f"{before.day.day} {before.day:%B %Y}", guess=guess)
        entry.value = before.given
        button.description = AGAIN
        result.value = html.escape(words)

    def _ipython_display_(self) -> None:
        display(HTML(self.html()) if os.environ.get("SHARDLAB_STATIC") == "1" else self.widget())


def number_inputs(asked: Number) -> str:
    """Return a labelled field with its unit, and the button.

    The field is text, because one of type number would refuse 1,000.
    """
    key = f"guess-{asked.name}"
    return (
        f'<label class="guess-question" for="{key}">{html.escape(asked.text)}</label>'
        f'<p class="guess-entry">'
        f'<input type="text" inputmode="decimal" name="guess" id="{key}" required'
        f' pattern="{quoted(asked.pattern)}" aria-describedby="{key}-unit {key}-result">'
        f'<span id="{key}-unit">{html.escape(asked.units[1])}</span><button>{CHECK}</button></p>'
    )


def choice_inputs(asked: Choice) -> str:
    """Return the options as radio buttons in a fieldset, and the button."""
    labels = "".join(
        f'<label class="guess-option">'
        f'<input type="radio" name="guess" required value="{quoted(option)}">'
        f"<span>{html.escape(option)}</span></label>"
        for option in asked.options
    )
    legend = f'<legend class="guess-question">{html.escape(asked.text)}</legend>'
    described = f'aria-describedby="guess-{asked.name}-result"'
    button = f'<p class="guess-entry"><button>{CHECK}</button></p>'
    return f"<fieldset {described}>{legend}{labels}</fieldset>{button}"


def packed(rules: dict[str, Any]) -> str:
    """Return rules as JSON for a single-quoted attribute, where double quotes need no escape."""
    text = json.dumps(rules, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", "&amp;").replace("'", "&#x27;")


def live_entry(asked: Number | Choice) -> Any:
    """Return the ipywidget that takes a guess; its value is text."""
    import ipywidgets as widgets

    wide = {"style": {"description_width": "initial"}, "layout": {"width": "auto"}}
    if isinstance(asked, Choice):
        return widgets.RadioButtons(
            options=asked.options, value=None, description="Your guess:", **wide
        )
    return widgets.Text(
        description=f"Your guess ({asked.units[1]}):" if asked.units[1] else "Your guess:", **wide
    )


def announced(sentence: str) -> str:
    """Return a sentence that a screen reader speaks.

    It is an alert, because it arrives together with its region.
    """
    return f'<div role="alert" aria-live="polite">{html.escape(sentence)}</div>'
