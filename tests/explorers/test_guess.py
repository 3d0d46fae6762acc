"""Guesses on Python's side: the sentences, the form of a page, the widgets of a kernel, the file of guesses."""

from __future__ import annotations

import html.parser
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardlab.explorers import guess, kept, questions
from shardlab.files import learner

from .guesses import BAD, CASES, COUNT, LARGER, MEMORY


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A learner's folder, the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHARDLAB_FOLDER", learner.FOLDER)
    return tmp_path


# ---- sentences


@pytest.mark.parametrize(("asked", "given", "sentence"), CASES)
def test_a_guess_gets_its_sentence(asked: guess.Guess, given: str, sentence: str) -> None:
    assert asked.question.judge(given.strip()) == sentence


@pytest.mark.parametrize(("asked", "given", "message"), BAD)
def test_what_is_no_guess_is_told_what_to_type(asked: guess.Guess, given: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        asked.question.judge(given)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: guess.number("?", answer=0, name="a"), r"no ratio to the answer 0.0; ask with guess.choice"),
        (lambda: guess.number("?", answer=-2.5, name="a"), "no ratio to the answer -2.5"),
        (lambda: guess.number("?", answer=float("inf"), name="a"), "no ratio to the answer inf"),
        (lambda: guess.number("?", answer=float("nan"), name="a"), "no ratio to the answer nan"),
        (lambda: guess.number("?", answer=1, within=0.9, name="a"), "at least 1, got 0.9; 1.1 allows 10 %"),
        (lambda: guess.number("?", answer=1, name="Two words"), "'Two words' cannot name .* take 'two-words'"),
        (lambda: guess.choice("?", ["x", "y"], answer="z", name="a"), r"\['x', 'y'\], the answer is 'z'; give two"),
        (lambda: guess.choice("?", ["x"], answer="x", name="a"), "give two or more options"),
        (lambda: guess.choice("?", ["x", "y", "x"], answer="x", name="a"), "all different"),
    ],
)
def test_a_question_without_an_answer_raises(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (1, "1"),
        (1000, "1,000"),
        (999_999_999, "999,999,999"),
        (1e9, "1e9"),
        (999_999_999.6, "1e9"),
        (12.75, "12.8"),
        (0.0012345, "0.00123"),
        (0.00099999, "0.001"),
        (0.0009, "9e-4"),
    ],
)
def test_numbers_are_written_for_readers(x: float, text: str) -> None:
    assert questions.number_text(x) == text


# ---- the page


class Reader(html.parser.HTMLParser):
    """Elements with their attributes, in order, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, Any]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, Any]]:
        return [attributes for name, attributes in self.elements if name == tag]


def test_a_number_has_a_label_and_a_field_that_takes_decimals() -> None:
    page = Reader(MEMORY.html())
    (label,), (field,) = page.all("label"), page.all("input")
    assert label["for"] == field["id"]
    assert (field["type"], field["inputmode"]) == ("text", "decimal")
    ids = {attributes.get("id") for _, attributes in page.elements}
    assert {*field["aria-describedby"].split()} < ids
    assert page.texts[:3] == ["How much memory?", "GB", guess.CHECK]


def test_a_choice_is_a_fieldset_with_a_legend_and_nothing_chosen() -> None:
    page = Reader(LARGER.html())
    assert [tag for tag, _ in page.elements][2:4] == ["fieldset", "legend"]
    values = [field["value"] for field in page.all("input")]
    assert values == ["the states", 'the "a" & <b>']
    assert not any("checked" in field for field in page.all("input"))
    assert page.texts[:3] == ['Which is larger, <b> or "c"?', *values]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(MEMORY, ["2,800 GB", "Four parts."]), (LARGER, ["the states", "1 < 2"]), (COUNT, ["1 GPU"])],
)
def test_the_answer_is_folded_and_the_verdict_is_spoken(asked: guess.Guess, answer: list[str]) -> None:
    page = Reader(asked.html())
    assert "open" not in page.all("details")[0]
    assert page.texts[-len(answer) - 1 :] == ["The answer", *answer]
    (verdict,) = [attributes for attributes in page.all("p") if attributes.get("class") == "guess-result"]
    assert verdict["aria-live"] == "polite"
    assert not page.all("b"), "a question is text, not HTML"


def test_the_script_gets_the_rules() -> None:
    rules = json.loads(Reader(COUNT.html()).elements[0][1]["data-guess"])
    assert (rules["name"], rules["answer"], rules["units"], rules["within"]) == ("count", 1, ["GPU", "GPUs"], 2)
    assert rules["says"]["right"] == "You guessed {guess}. That is right."


# ---- the kernel


def parts(asked: guess.Guess) -> tuple[Any, ...]:
    """The entry, the button, the verdict and the answer of the live form."""
    return asked.widget().children[1:]


@pytest.mark.parametrize(("asked", "given", "sentence"), [CASES[0], CASES[11], CASES[-2], CASES[-1]])
def test_the_live_form_says_the_same_and_keeps_the_guess(
    folder: Path, asked: guess.Guess, given: str, sentence: str
) -> None:
    entry, button, verdict, answer = parts(asked)
    assert '<details class="guess-answer" >' in answer.value
    entry.value = given
    button.click()
    assert verdict.value == guess.announced(sentence)
    assert 'aria-live="polite"' in verdict.value
    assert '"guess-answer" open>' in answer.value
    assert button.description == guess.AGAIN
    (line,) = (folder / ".shardlab" / "guesses.jsonl").read_text().splitlines()
    assert {**json.loads(line), "date": None} == {"name": asked.question.name, "given": given, "date": None}


@pytest.mark.parametrize(("asked", "given", "message"), [BAD[0], BAD[7], (LARGER, None, BAD[-1][2])])
def test_the_live_form_says_what_to_type(folder: Path, asked: guess.Guess, given: str | None, message: str) -> None:
    entry, button, verdict, answer = parts(asked)
    entry.value = given
    button.click()
    assert verdict.value == guess.announced(message)
    assert "open" not in answer.value
    assert not (folder / ".shardlab").exists()


def test_the_live_form_shows_the_guess_of_an_earlier_day(folder: Path) -> None:
    write(folder, {"name": "memory", "given": "300", "date": "2025-11-02T08:00:00"})
    entry, button, verdict, answer = parts(MEMORY)
    assert verdict.value == "Your guess of 2 November 2025: 300 GB."
    assert (entry.value, button.description) == ("300", guess.AGAIN)
    assert "open" not in answer.value
    assert parts(COUNT)[2].value == ""


def test_an_old_guess_at_another_question_of_this_name_is_left_out(folder: Path) -> None:
    write(folder, {"name": "larger", "given": "the activations", "date": "2025-11-02T08:00:00"})
    entry, button, verdict, _ = parts(LARGER)
    assert (entry.value, button.description, verdict.value) == (None, guess.CHECK, "")


@pytest.mark.parametrize(("static", "kind"), [("1", "HTML"), ("", "VBox")])
def test_the_build_gets_a_page_and_a_kernel_gets_widgets(
    monkeypatch: pytest.MonkeyPatch, static: str, kind: str
) -> None:
    shown: list[Any] = []
    monkeypatch.setenv("SHARDLAB_STATIC", static)
    monkeypatch.setattr(guess, "display", shown.append)
    MEMORY._ipython_display_()
    assert [type(x).__name__ for x in shown] == [kind]


# ---- the file


def write(folder: Path, *lines: Any) -> None:
    """Write a file of guesses; strings as they are."""
    (folder / ".shardlab").mkdir()
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / ".shardlab" / "guesses.jsonl").write_text("\n".join(texts))


def test_the_latest_guess_of_a_name_is_found() -> None:
    assert kept.kept("a") is None
    for name, given in (("a", "1"), ("b", "2"), ("a", "한 GB"), ("b", "4")):
        kept.keep(name, given)
    assert kept.kept("a").given == "한 GB"
    assert kept.kept("c") is None


def test_lines_that_cannot_be_read_are_skipped(folder: Path) -> None:
    good = {"name": "a", "given": "1", "date": "2025-11-02T08:00:00"}
    write(folder, good, "{", "[]", '{"name": "a"}', {**good, "date": "yesterday"}, {**good, "date": 3}, "7", '"a"')
    assert kept.kept("a").given == "1"


def test_nothing_is_kept_where_no_file_can_be_written(folder: Path) -> None:
    (folder / ".shardlab").write_text("a file, where a folder should be")
    entry, button, verdict, _ = parts(COUNT)
    entry.value = "1"
    button.click()
    assert "That is right." in verdict.value
    assert kept.kept("count") is None
    guess.made("count")  # no error: a cell that waits for this guess goes on

