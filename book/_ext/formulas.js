/* Typesets formulas when the rest of the page is there, a few at a time, from the reader's place on: the page stays responsive. */
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
    const here = all.findIndex((each) => each.getBoundingClientRect().bottom > 0);
    all.push(...all.splice(0, Math.max(here, 0)));
    while (all.length) {
      await idle();
      await MathJax.typesetPromise(set(all.splice(0, FEW)));
    }
  }

  window.shardlabFormulas = () => (done ??= typeset()); // settles when the last one is set
  const soon = () => idle().then(shardlabFormulas);
  if (document.readyState === "complete") soon();
  else addEventListener("load", soon);
  addEventListener("beforeprint", () => window.MathJax?.typeset?.(set([...document.querySelectorAll(".math")]))); // cannot wait
})();
