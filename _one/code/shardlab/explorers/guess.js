/* Judges the guesses of a page that has no kernel, and keeps them in this browser. guess.py wrote the inputs, the answer and
   every sentence; here a sentence is chosen, as in questions.py, and the guess put into it. */
(() => {
  "use strict";
  const page = location.pathname.split("/").at(-1);

  function text(x) { // as number_text of questions.py
    const short = Number.isInteger(x) && x < 1e9 ? x : Number(x.toPrecision(3));
    if (short < 1e-3 || short >= 1e9) return short.toExponential().replace("+", "");
    return short.toLocaleString("en-US", { maximumSignificantDigits: 9 });
  }

  const fill = (sentence, words) => sentence.replace(/\{(\w+)\}/g, (_, name) => words[name]);
  const choose = ({ says, answer }, guess) => fill(says[guess === answer ? "right" : "wrong"], { guess: `"${guess}"` });

  function judge({ says, answer, within }, x, guess) {
    const factor = Math.max(x / answer, 1 / (x / answer));
    const how = factor <= within ? "close" : x < answer ? "small" : "large";
    const sentence = says[text(x) === text(answer) ? "right" : how];
    return fill(sentence, { guess, factor: text(Number(factor.toPrecision(2))) });
  }

  for (const block of document.querySelectorAll(".guess")) {
    const rules = JSON.parse(block.dataset.guess);
    const [form, result, answer] = ["form", ".guess-result", "details"].map((part) => block.querySelector(part));
    const [entry, first] = [form.elements.guess, form.querySelector("input")];
    const key = `shardlab guess ${page} ${rules.name}`;
    const number = () => parseFloat(entry.value.replaceAll(",", ""));
    const shown = () => rules.units ? `${text(number())} ${rules.units[number() === 1 ? 0 : 1]}`.trim() : entry.value;

    function say(words) {
      result.textContent = words;
      form.querySelector("button").textContent = rules.again;
    }

    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const right = form.checkValidity();
      if (rules.units) first.setAttribute("aria-invalid", !right);
      if (!right) {
        result.textContent = rules.ask;
        return first.focus();
      }
      say(rules.units ? judge(rules, number(), shown()) : choose(rules, entry.value));
      answer.open = true;
      try {
        localStorage.setItem(key, JSON.stringify({ given: entry.value.trim(), at: Date.now() }));
      } catch {} // no storage here: the guess is not kept
    });

    try {
      const { given, at } = JSON.parse(localStorage.getItem(key));
      entry.value = given;
      const date = new Date(at).toLocaleDateString("en-GB", { day: "numeric", month: "long", year: "numeric" });
      if (form.checkValidity()) say(fill(rules.before, { date, guess: shown() }));
      else form.reset(); // the question has changed since
    } catch {} // no storage, or nothing in it
    block.classList.add("live");
  }
})();
