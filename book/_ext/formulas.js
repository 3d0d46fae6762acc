/* Typesets formulas when the rest of the page is there, a few at a time, from where the reader is: the page stays responsive. */
"use strict";

(() => {
  const FEW = 6;
  const PARTS = ["input/tex", "output/chtml", "a11y/assistive-mml"]; // and what they ask for, but not its menu
  const address = new URL("../mathjax/startup.js", document.currentScript.src).href;
  const idle = () => new Promise((then) => (window.requestIdleCallback ? requestIdleCallback(then, { timeout: 200 }) : setTimeout(then)));
  let done;

  function load() {
    window.MathJax = { ...window.MathJax, loader: { load: PARTS }, startup: { typeset: false } };
    return new Promise((resolve, reject) => {
      const script = Object.assign(document.createElement("script"), { src: address, onerror: reject });
      script.onload = () => resolve(MathJax.startup.promise);
      document.head.append(script);
    });
  }

  function set(formulas) { // shardlab_light.py wrote some as they read without MathJax
    for (const each of formulas) if (each.dataset.tex) [each.textContent, each.dataset.tex] = [each.dataset.tex, ""];
    return formulas;
  }

  async function typeset() {
    await load();
    const all = [...document.querySelectorAll(".math")];
    while (all.length) {
      await idle();
      const here = all.findIndex((each) => each.getBoundingClientRect().bottom > 0); // the reader may have jumped
      await MathJax.typesetPromise(set(all.splice(here < 0 ? -FEW : here, FEW)));
    }
  }

  const rest = () => document.documentElement.classList.add("typeset"); // book.css shows what MathJax could not set
  window.shardlabFormulas = () => (done ??= typeset().finally(rest)); // settles when the last one is set
  const soon = () => idle().then(shardlabFormulas);
  if (document.readyState === "complete") soon();
  else addEventListener("load", soon);
  addEventListener("beforeprint", () => window.MathJax?.typeset?.(set([...document.querySelectorAll(".math")]))); // cannot wait
})();
