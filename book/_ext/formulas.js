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

  async function typeset() {
    await load();
    const all = [...document.querySelectorAll(".math")];
    const here = all.findIndex((each) => each.getBoundingClientRect().bottom > 0);
    all.push(...all.splice(0, Math.max(here, 0)));
    while (all.length) {
      await idle();
      await MathJax.typesetPromise(all.splice(0, FEW));
    }
  }

  window.shardlabFormulas = () => (done ??= typeset()); // settles when the last one is set
  const soon = () => idle().then(shardlabFormulas);
  if (document.readyState === "complete") soon();
  else addEventListener("load", soon);
  addEventListener("beforeprint", () => window.MathJax?.typeset?.([...document.querySelectorAll(".math")])); // cannot wait
})();
