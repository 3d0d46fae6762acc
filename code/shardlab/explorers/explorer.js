/* Plays the explorers of a page that has no kernel. page.py wrote each one's controls, sentence, table and states; here the
   controls choose a state and plotly.js draws it. Positions live in the address: #explorer.control=value&… */
(() => {
  "use strict";
  const plotlyAddress = new URL("plotly.min.js", document.currentScript.src).href;
  const explorers = [];
  let touched = []; // explorers whose positions stand in the address, the latest first
  let loading;

  function plotly() {
    loading ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = plotlyAddress;
      script.onload = () => resolve(window.Plotly);
      script.onerror = () => reject(new Error(`could not load ${plotlyAddress}`));
      document.head.append(script);
    });
    return loading;
  }

  async function unpack(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  }

  function at(tree, index) { // one of the values that columns.py joined
    if ("same" in tree) return tree.same;
    if ("each" in tree) return tree.each[index];
    if ("items" in tree) return tree.items.slice(0, at(tree.lengths, index)).map((branch) => at(branch, index));
    return Object.fromEntries(Object.entries(tree.keys).map(([key, branch]) => [key, at(branch, index)]));
  }

  // ---- the look: the theme's colours, and what a phone needs

  const themeColor = (name, otherwise) =>
    getComputedStyle(document.documentElement).getPropertyValue(`--pst-color-${name}`).trim() || otherwise;

  function dress(layout, width) {
    const [text, back, faint] = [themeColor("text-base", "#222"), themeColor("background", "#fff"), "rgba(128,128,128,0.3)"];
    const { height } = layout; // view.py gives every figure one
    for (const [key, { title }] of Object.entries(layout))
      if (/^[xy]axis\d*$/.test(key) && title?.text) title.text = wrap(title.text, (key[0] === "x" ? width : height) - 120);
    const axis = { gridcolor: faint, linecolor: faint, zerolinecolor: faint, automargin: true, fixedrange: true };
    const defaults = { xaxis: axis, yaxis: axis, annotationdefaults: { arrowcolor: text }, shapedefaults: { line: { color: text } } };
    const font = { ...layout.font, color: text, family: getComputedStyle(document.body).fontFamily };
    if (width < 480) font.size = 11; // a phone: legends in two columns, labels that leave room for the figure
    const hoverlabel = { ...layout.hoverlabel, bgcolor: back, bordercolor: faint, font: { color: text } };
    const clear = { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)" };
    const margin = { l: 8, r: 16, t: layout.title ? 60 : 24, b: 8, ...layout.margin };
    // dragmode: dragging would keep a finger from scrolling the page
    return { ...layout, ...clear, font, hoverlabel, margin, width, dragmode: false, template: { layout: defaults } };
  }

  function wrap(text, pixels) {
    const lines = [""];
    for (const word of text.split(" ")) {
      const longer = `${lines.at(-1)} ${word}`.trim();
      if (longer.length * 7 > pixels) lines.push(word); // a letter is about 7 pixels wide
      else lines[lines.length - 1] = longer;
    }
    return lines.filter(Boolean).join("<br>");
  }

  // ---- one control: its position is an index into its values

  class Control {
    constructor(input, changed) {
      this.input = input;
      this.name = input.dataset.control;
      this.values = JSON.parse(input.dataset.values);
      this.texts = JSON.parse(input.dataset.texts);
      input.addEventListener("input", () => (this.say(), changed()));
    }
    get at() {
      const { input } = this;
      if (input.type === "checkbox") return this.values.indexOf(input.checked ? "True" : "False");
      return input.type === "range" ? Number(input.value) : input.selectedIndex;
    }
    set at(index) {
      const { input } = this;
      if (input.type === "checkbox") input.checked = this.values[index] === "True";
      else if (input.type === "range") input.value = index;
      else input.selectedIndex = index;
      this.say();
    }
    say() {
      if (this.input.type !== "range") return;
      this.input.setAttribute("aria-valuetext", this.texts[this.at]);
      this.input.nextElementSibling.textContent = this.texts[this.at];
    }
  }

  // ---- one explorer

  class Explorer {
    constructor(block) {
      const part = (name) => block.querySelector(`.explorer-${name}`);
      [this.block, this.name] = [block, block.dataset.explorer];
      [this.plot, this.sentence, this.data, this.packed] = ["plot", "sentence", "data", "states"].map(part);
      const inputs = [...block.querySelectorAll("[data-control]")];
      this.controls = inputs.map((input) => new Control(input, () => this.changed()));
      block.classList.add("live");
      this.data.open = false;
      this.data.addEventListener("toggle", () => this.data.open && this.draw());
      new IntersectionObserver((entries, observer) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        observer.disconnect();
        new ResizeObserver(() => this.plot.clientWidth !== this.width && this.draw()).observe(this.plot);
      }, { rootMargin: "600px" }).observe(this.plot);
    }
    get drawn() {
      return "state" in this.block.dataset;
    }
    index() { // the last control turns fastest, as in Explorer.states() of explorer.py
      return this.controls.reduce((index, control) => index * control.values.length + control.at, 0);
    }
    get count() {
      return this.controls.reduce((count, control) => count * control.values.length, 1);
    }
    async view(index) {
      return at(await (this.tree ??= unpack(this.packed.textContent)), index);
    }
    changed() {
      touched = [this, ...touched.filter((other) => other !== this)];
      clearTimeout(this.writing); // browsers allow only so many changes of the address in a second
      this.writing = setTimeout(writeAddress, 200);
      this.frame ??= requestAnimationFrame(() => ((this.frame = undefined), this.draw()));
    }
    async draw() {
      try {
        const [Plotly] = await Promise.all([plotly(), this.view(0)]);
        const { figure, sentence, table } = await this.view(this.index());
        if (this.sentence.innerHTML !== sentence) this.sentence.innerHTML = sentence;
        if (this.data.open) this.fill(table);
        this.width = this.plot.clientWidth;
        const { data, layout } = structuredClone(figure); // plotly writes into what it is given
        this.plot.setAttribute("aria-label", layout.meta?.alt ?? (this.sentence.textContent || "figure"));
        await Plotly.react(this.plot, data, dress(layout, this.width), { displayModeBar: false });
        this.block.dataset.state = this.index();
      } catch (error) {
        this.block.classList.replace("live", "failed"); // the table stays
        this.data.open = true;
        throw error;
      }
    }
    fill([head, ...rows]) {
      const line = (tag, cells) => {
        const row = document.createElement("tr");
        for (const text of cells) row.append(Object.assign(document.createElement(tag), { textContent: text }));
        return row;
      };
      this.data.querySelector("thead").replaceChildren(line("th", head));
      this.data.querySelector("tbody").replaceChildren(...rows.map((cells) => line("td", cells)));
    }
  }

  // ---- the address

  function writeAddress() {
    const fields = new URLSearchParams();
    for (const { name, controls } of touched)
      for (const control of controls) fields.append(`${name}.${control.name}`, control.values[control.at]);
    history.replaceState(history.state, "", `#${fields}`);
  }

  function readAddress() {
    const fields = new URLSearchParams(location.hash.slice(1));
    touched = [];
    for (const key of fields.keys()) {
      const explorer = explorers.find(({ name }) => key.startsWith(`${name}.`));
      const control = explorer?.controls.find(({ name }) => key === `${explorer.name}.${name}`);
      const index = control?.values.indexOf(fields.get(key)) ?? -1;
      if (index < 0) continue;
      control.at = index;
      if (!touched.includes(explorer)) touched.push(explorer);
    }
    for (const explorer of touched) if (explorer.drawn) explorer.draw();
    touched[0]?.block.scrollIntoView();
  }

  function start() {
    for (const block of document.querySelectorAll(".explorer")) explorers.push(new Explorer(block));
    readAddress();
    addEventListener("load", () => touched[0]?.block.scrollIntoView());
    addEventListener("hashchange", readAddress);
    addEventListener("beforeprint", () => {
      for (const explorer of explorers) if (!explorer.drawn) explorer.data.open = true; // opening it draws it too
    });
    const redraw = () => explorers.forEach((explorer) => explorer.drawn && explorer.draw());
    new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  }

  window.shardlab = { explorers };
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", start);
  else start();
})();
