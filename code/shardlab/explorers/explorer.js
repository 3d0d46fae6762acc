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
      script.onload = () => setTimeout(() => resolve(window.Plotly)); // a pause, in which the page can answer
      script.onerror = () => reject(new Error(`could not load ${plotlyAddress}`));
      document.head.append(script);
    });
    return loading;
  }

  let turns = Promise.resolve();
  const turn = () => (turns = turns.then(() => new Promise((then) => setTimeout(then)))); // of several figures, one after the other

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

  function dress({ data, layout }, width, tall) {
    lower(layout, tall);
    const [text, back, faint] = [themeColor("text-base", "#222"), themeColor("background", "#fff"), "rgba(128,128,128,0.3)"];
    const { height } = layout; // view.py gives every figure one
    for (const [key, { title }] of Object.entries(layout))
      if (/^[xy]axis\d*$/.test(key) && title?.text) title.text = wrap(title.text, (key[0] === "x" ? width : height) - 120);
    for (const [key, legend] of Object.entries(layout)) if (/^legend\d*$/.test(key)) legend.maxheight = 1; // not scrolled
    if (!printing && !forced.matches) flatten(data);
    for (const [rank, trace] of [...data].entries()) {
      trace.legendrank = rank + 1;
      const bars = trace.type === "bar" && trace.marker; // plotly colours others itself
      if (bars && layout.barmode !== "group") data.push(...strongSwatch(trace));
      if (bars) solid(trace, back);
      if (width < 480) narrow(trace, layout);
    }
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

  // A lower figure loses height in its plots only: the gaps between them, with their words, keep theirs.
  const WORDS = 80, LOSS = 0.5; // px of a figure outside of its axes; the share of their height that plots may lose

  function plots({ height, ...layout }) { // where they are, from 0 at the bottom to 1, and the height of all of them
    const axes = Object.entries(layout).filter(([key]) => /^yaxis\d*$/.test(key)).map(([, axis]) => axis);
    const spans = [...new Set(axes.map(({ domain }) => String(domain ?? [0, 1])))].map((span) => span.split(",").map(Number));
    const inner = height - WORDS;
    return { axes, spans, inner, all: inner * spans.reduce((sum, [low, high]) => sum + high - low, 0) };
  }

  function lower(layout, tall) {
    const loss = layout.height - tall, { axes, spans, inner, all } = plots(layout);
    layout.height = tall;
    if (!loss || spans.length < 2) return;
    const below = (y) => spans.reduce((sum, [low, high]) => sum + Math.min(Math.max(y - low, 0), high - low), 0); // of plots, under y
    const moved = (y) => (y > 1 ? y : (y * inner - (below(y) * inner * loss) / all) / (inner - loss));
    for (const axis of axes) if (axis.domain) axis.domain = axis.domain.map(moved);
    const placed = [...Object.keys(layout).filter((key) => /^legend\d*$/.test(key)).map((key) => layout[key]), ...(layout.annotations ?? [])];
    for (const each of placed) if (each.y !== undefined && (each.yref ?? "paper") === "paper") each.y = moved(each.y);
  }

  // On a screen colours tell bars apart; patterns stay on paper and in forced colours.
  const forced = matchMedia("(forced-colors: active)");
  let printing = false;
  function flatten(data) {
    for (const { marker } of data) if (marker?.pattern) marker.pattern.shape = "";
  }

  // Bars: a faded one is mixed with the page, else grid lines show through; words in it are white or black, whichever reads.
  function solid(trace, back) {
    const { marker, text } = trace, { pattern } = marker, count = (trace.x ?? trace.y).length;
    const least = document.documentElement.dataset.theme === "dark" ? 0.6 : 0; // fainter is nearly black on black
    const fills = Array.from({ length: count }, (_, i) => mixed(one(marker.color, i), back, Math.max(one(marker.opacity, i) ?? 1, least)));
    const inks = fills.map((fill) => (contrast(fill, "#ffffff") >= AA ? "#ffffff" : "#000000"));
    marker.opacity = 1;
    if (pattern?.shape) [pattern.bgcolor, marker.color] = [fills, fills[0]]; // on a list plotly draws marks of its own choice
    else marker.color = fills;
    if (!text) return;
    trace.insidetextfont = { ...trace.textfont, color: inks };
    if (!pattern?.shape) return;
    pattern.fgcolor = inks.map((ink) => (ink === "#ffffff" ? "#000000" : "#ffffff")); // marks move away from the ink
    pattern.fgopacity = 0.3;
  }

  // A legend shows the first bar, which may be a faded one: an empty trace takes its place there.
  function strongSwatch(trace) {
    if (!Array.isArray(trace.marker.opacity) || trace.showlegend === false) return [];
    const swatch = structuredClone({ ...trace, x: [null], y: [null], text: undefined, marker: { ...trace.marker, opacity: 1 } });
    trace.showlegend = false;
    return [swatch];
  }

  const AA = 4.5; // contrast of text, WCAG 2.1, 1.4.3
  const one = (values, i) => (Array.isArray(values) ? values[i] : values);
  const channels = (color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));

  const brush = document.createElement("canvas").getContext("2d"); // writes every opaque colour as #rrggbb
  const plain = (color) => ((brush.fillStyle = color), brush.fillStyle);

  function mixed(color, back, share) { // a colour that lets the page through stays
    const [above, below] = [plain(color), channels(plain(back))];
    if (!above.startsWith("#")) return color;
    const parts = channels(above).map((part, i) => Math.round(share * part + (1 - share) * below[i]));
    return `#${parts.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
  }

  function contrast(...colors) {
    const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const [red, green, blue] = [0.2126, 0.7152, 0.0722];
    const light = ([r, g, b]) => red * linear(r / 255) + green * linear(g / 255) + blue * linear(b / 255);
    const [low, high] = colors.map((color) => light(channels(color))).sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  }

  // A phone: long names of rows stand in two lines where their rows have room for them.
  function narrow(trace, layout) {
    const axis = layout[(trace.yaxis ?? "y").replace("y", "yaxis")];
    const names = [...new Set(trace.y)].filter((name) => typeof name === "string" && name.length > 17 && name.includes(" "));
    const rows = axis?.categoryarray ?? [...new Set(trace.y)];
    const [low, high] = axis?.domain ?? [0, 1];
    if (!names.length || !axis || axis.ticktext) return;
    if (layout.height * (high - low) < 80 * rows.length) return; // no room for two lines
    const folded = (name) => (names.includes(name) ? wrap(name, 90) : name);
    trace.y = trace.y.map(folded);
    if (axis.categoryarray) axis.categoryarray = axis.categoryarray.map(folded);
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
      this.radios = [...input.querySelectorAll("input")]; // of two or three values
      input.addEventListener("input", () => (this.say(), changed()));
    }
    get at() {
      const { input, radios } = this;
      if (radios.length) return radios.findIndex(({ checked }) => checked);
      if (input.type === "checkbox") return this.values.indexOf(input.checked ? "True" : "False");
      return input.type === "range" ? Number(input.value) : input.selectedIndex;
    }
    set at(index) {
      const { input, radios } = this;
      if (radios.length) radios[index].checked = true;
      else if (input.type === "checkbox") input.checked = this.values[index] === "True";
      else if (input.type === "range") [input.max, input.value] = [this.values.length - 1, index];
      else input.selectedIndex = index;
      this.say();
    }
    get moved() {
      return this.at !== Number(this.input.dataset.at);
    }
    reset() {
      this.at = Number(this.input.dataset.at);
    }
    say() {
      if (this.input.type !== "range") return;
      this.input.setAttribute("aria-valuetext", this.texts[this.at]);
      this.input.nextElementSibling.textContent = this.texts[this.at];
    }
  }

  // ---- a slider that a reader steps through, or plays until nothing changes any more

  const STEP_TIME = 800; // ms

  class Player {
    constructor(buttons, control, explorer) {
      const [back, next, play] = buttons, changed = () => explorer.changed();
      Object.assign(this, { control, changed, play, explorer });
      for (const [button, by] of [[back, -1], [next, 1]])
        button.addEventListener("click", () => (this.stop(), this.go(control.at + by)));
      play.addEventListener("click", () => (this.timer ? this.stop() : this.start()));
      control.input.addEventListener("input", () => this.stop());
    }
    limit() { // the slider ends at the last step that changes anything
      const { control, explorer: { controls, views } } = this, after = controls.slice(controls.indexOf(control) + 1);
      const stride = after.reduce((count, { values }) => count * values.length, 1), first = this.explorer.index() - control.at * stride;
      const shown = control.values.map((_, step) => JSON.stringify(at(views, first + step * stride)));
      control.input.max = shown.findLastIndex((each, step) => !step || each !== shown[step - 1]);
      control.say();
    }
    get last() {
      return Number(this.control.input.max);
    }
    go(at) {
      this.control.at = Math.min(Math.max(at, 0), this.last);
      this.changed();
    }
    start() {
      const { last } = this;
      this.go(this.control.at >= last ? 0 : this.control.at + 1);
      this.timer = setInterval(() => (this.go(this.control.at + 1), this.control.at >= last && this.stop()), STEP_TIME);
      this.play.textContent = "Pause";
    }
    stop() {
      clearInterval(this.timer);
      this.timer = undefined;
      this.play.textContent = "Play";
    }
  }

  // ---- one explorer

  const SCREEN = 752, PHONE = 796; // px above the data table, of screens that are 800 and 844 high

  class Explorer {
    constructor(block) {
      const part = (name) => block.querySelector(`.explorer-${name}`);
      [this.block, this.name] = [block, block.dataset.explorer];
      [this.plot, this.sentence, this.data, this.packed] = ["plot", "sentence", "data", "states"].map(part);
      this.resetting = part("reset"); // a figure without controls has none
      this.resetting?.addEventListener("click", () => {
        for (const control of this.controls) control.reset();
        this.changed();
        (inputs[0].querySelector("input:checked") ?? inputs[0]).focus(); // the button is about to hide
      });
      const inputs = [...block.querySelectorAll("[data-control]")];
      this.controls = inputs.map((input) => new Control(input, () => this.changed()));
      for (const control of this.controls) {
        const buttons = control.input.closest(".explorer-control").querySelectorAll("button");
        if (buttons.length) this.player = new Player(buttons, control, this);
      }
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
      return at(await (this.unpacking ??= unpack(this.packed.textContent)), index);
    }
    changed() {
      touched = [this, ...touched.filter((other) => other !== this)];
      clearTimeout(this.writing); // browsers allow only so many changes of the address in a second
      this.writing = setTimeout(writeAddress, 200);
      this.frame ??= requestAnimationFrame(() => ((this.frame = undefined), this.draw()));
    }
    async load() {
      [this.views] = await Promise.all([(this.unpacking ??= unpack(this.packed.textContent)), plotly(), document.fonts.ready]);
    }
    paint() { // at once, when `load` is done: a browser that prints waits for nothing
      this.player?.limit();
      const { figure, sentence, table, caption } = at(this.views, this.index());
      if (this.sentence.innerHTML !== sentence) this.sentence.innerHTML = sentence;
      if (this.data.open) this.fill(table, caption);
      if (this.resetting) this.resetting.disabled = !this.controls.some(({ moved }) => moved);
      if (this.width !== this.plot.clientWidth) this.reserve();
      const tall = this.resetting ? this.height(figure.layout) : figure.layout.height;
      const shown = structuredClone(figure); // plotly writes into what it is given
      this.plot.setAttribute("aria-label", figure.layout.meta?.alt ?? (this.sentence.textContent || "figure"));
      const layout = dress(shown, this.width, tall);
      const done = Plotly.react(this.plot, shown.data, layout, { displayModeBar: false });
      this.block.dataset.state = this.index();
      return done;
    }
    draw() { // one drawing serves all who ask for it while it waits
      return (this.waiting ??= this.drawSoon());
    }
    async drawSoon() {
      try {
        await this.load();
        if (!this.drawn) await turn();
        this.waiting = undefined;
        await this.paint();
      } catch (error) {
        this.block.classList.replace("live", "failed"); // the table stays
        this.data.open = true;
        throw error;
      }
    }
    height(layout) { // of the figure: the explorer fits one screen
      const above = this.plot.getBoundingClientRect().top - this.block.getBoundingClientRect().top;
      const room = (this.width < 600 ? PHONE : SCREEN) - above, least = layout.height - LOSS * plots(layout).all;
      const height = Math.round(Math.min(layout.height, Math.max(least, room)));
      this.plot.style.minHeight = `${height}px`;
      return height;
    }
    reserve() { // the height of the longest sentences at this width: the page must not move under the reader's hand
      this.width = this.plot.clientWidth;
      const sentence = this.views.keys?.sentence;
      if (!sentence) return; // a figure without controls
      const all = new Set(Array.from({ length: this.count }, (_, index) => at(sentence, index)));
      const longest = [...all].sort((one, other) => other.length - one.length).slice(0, 12);
      const ghosts = longest.map((innerHTML) => Object.assign(this.sentence.cloneNode(), { innerHTML, ariaLive: null }));
      for (const { style } of ghosts) style.cssText = "min-height: 0; visibility: hidden";
      this.sentence.after(...ghosts); // all at once: the browser lays the page out once
      const heights = ghosts.map((ghost) => ghost.offsetHeight);
      for (const ghost of ghosts) ghost.remove();
      this.sentence.style.minHeight = `${Math.max(...heights)}px`;
    }
    fill([head, ...rows], caption) {
      const named = (tag, text, more = {}) => Object.assign(document.createElement(tag), { textContent: text, ...more });
      const line = (cells) => {
        const row = document.createElement("tr");
        row.append(...cells);
        return row;
      };
      const told = ([name, ...cells]) => line([named("th", name, { scope: "row" }), ...cells.map((text) => named("td", text))]);
      this.data.querySelector("caption").textContent = caption;
      this.data.querySelector("thead").replaceChildren(line(head.map((text) => named("th", text, { scope: "col" }))));
      this.data.querySelector("tbody").replaceChildren(...rows.map(told));
    }
  }

  // ---- the address

  function writeAddress() {
    const fields = new URLSearchParams();
    for (const { name, controls } of touched)
      for (const control of controls) if (control.moved) fields.append(`${name}.${control.name}`, control.values[control.at]);
    history.replaceState(history.state, "", `${location.pathname}${location.search}${fields.size ? "#" : ""}${fields}`);
  }

  function readAddress() {
    const fields = new URLSearchParams(location.hash.slice(1));
    for (const { controls } of touched) for (const control of controls) control.reset(); // what a link does not name is at its default
    const before = touched;
    touched = [];
    for (const key of fields.keys()) {
      const explorer = explorers.find(({ name }) => key.startsWith(`${name}.`));
      const control = explorer?.controls.find(({ name }) => key === `${explorer.name}.${name}`);
      const index = control?.values.indexOf(fields.get(key)) ?? -1;
      if (index < 0) continue;
      control.at = index;
      if (!touched.includes(explorer)) touched.push(explorer);
    }
    for (const explorer of new Set([...before, ...touched])) if (explorer.drawn) explorer.draw();
    touched[0]?.block.scrollIntoView();
  }

  function start() {
    for (const block of document.querySelectorAll(".explorer")) explorers.push(new Explorer(block));
    readAddress();
    addEventListener("load", () => touched[0]?.block.scrollIntoView());
    addEventListener("hashchange", readAddress);
    const redraw = () => explorers.forEach((explorer) => explorer.drawn && explorer.draw());
    new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    forced.addEventListener("change", redraw);
    preparePrinting();
  }

  // ---- paper: every figure, in light colours

  function preparePrinting() {
    const { dataset } = document.documentElement;
    let theme;
    addEventListener("beforeprint", () => {
      [theme, dataset.theme, printing] = [dataset.theme, "light", true];
      for (const explorer of explorers)
        if (explorer.views) explorer.paint();
        else explorer.data.open = true; // its table tells what it would show
    });
    addEventListener("afterprint", () => ([dataset.theme, printing] = [theme, false])); // the theme, set anew, draws them anew
    addEventListener("keydown", async (event) => { // the usual way to print can wait until all is loaded
      if (event.key !== "p" || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey) return;
      event.preventDefault();
      await Promise.allSettled([drawAll(), window.shardlabFormulas?.()]); // what fails is left out
      print();
    });
    // Other ways cannot: where a mouse is, and so perhaps a printer, the figures are drawn in idle moments.
    if (matchMedia("(pointer: fine)").matches && !navigator.connection?.saveData)
      addEventListener("load", () => idle(() => drawAll(() => new Promise(idle))));
  }

  const idle = (then) => (window.requestIdleCallback ? requestIdleCallback(then, { timeout: 2000 }) : setTimeout(then, 200));

  async function drawAll(pause) {
    for (const explorer of explorers) {
      await pause?.();
      if (!explorer.drawn) await explorer.draw();
    }
  }

  window.shardlab = { explorers };
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", start);
  else start();
})();
