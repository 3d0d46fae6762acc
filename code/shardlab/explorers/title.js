/* The picture of the title page: a model and its batch are cut by the reader's knife, and the pieces fly to their GPUs. */
(() => {
  const PLATES = 16, COLUMNS = 8, SEQUENCES = 16, TOKENS = 4, EDGE = 9, LINE = 18, FLY = 61;
  const KEY = [["held", "on the first GPU"], ["fetched", "fetched when needed"], ["others", "on other GPUs"], ["works", "a GPU that computes"], ["waits", "waits"], ["idle", "has no work"]];
  const groups = (name, count) => Array.from({ length: count }, (_, n) => `<g class="cuts-${name}"></g>`).join("");
  const meter = (name, question) => `<p class="moving-meter" data-meter="${name}"><b>${question}</b> <span></span><i><i></i></i></p>`;
  const box = (x, y, w, h, more) => `<rect x="${x}" y="${y}" width="${w}" height="${h}" ${more}/>`;

  function start(block) {
    const picture = block.querySelector(".cuts-picture"), state = block.querySelector(".cuts-state"), output = block.querySelector("output");
    const cases = JSON.parse(picture.dataset.cuts), selects = [...block.querySelectorAll("select")], amounts = selects[1].length;
    const others = selects.map(() => new Option()), chosen = [0, 0]; // others: what a step takes instead, while it is shown
    const knives = [...block.querySelectorAll("li")].map((item) => {
      const name = item.querySelector("strong"), button = Object.assign(document.createElement("button"), { type: "button", textContent: name.textContent });
      name.replaceWith(button);
      return { item, button, name: item.dataset.knife };
    });
    picture.innerHTML = `<svg role="img"><g class="cuts-ghosts"></g>${groups("cell", PLATES * COLUMNS)}${groups("token", SEQUENCES * TOKENS)}
      <g class="cuts-lens"></g><g class="cuts-squares"></g><path class="cuts-idle"/><path class="cuts-waits"/><path class="cuts-works"/><g class="cuts-words"></g><g class="cuts-flying"></g></svg>
      <div class="cuts-meters">${meter("fits", "Does it fit?")}${meter("waits", "Waits for?")}</div>
      <p class="cuts-key">${KEY.map(([look, words]) => `<span><i class="cuts-${look}"></i>${words}</span>`).join("")}</p>`;
    const svg = picture.firstChild, part = (name) => svg.querySelector(`.cuts-${name}`), every = (name) => [...svg.querySelectorAll(`.cuts-${name}`)];
    const list = knives[0].item.parentElement, stage = block.querySelector(".moving-stage"), phone = matchMedia("(max-width: 45rem)");
    const inOrder = () => (phone.matches ? stage.after(list) : stage.before(list)); // of the Tab key, as title.css shows them
    const cells = every("cell"), tokens = every("token"), meters = picture.querySelector(".cuts-meters");
    let at = 0;

    /* Where everything stands: side by side; on a phone the hall is below its first GPU. */
    function places() {
      const all = svg.clientWidth, wide = all >= 720, ghost = wide ? 12 : 7, high = wide ? 11 : 9, thick = TOKENS * (wide ? 8 : 6);
      const block = wide ? 0.28 * all : 0.47 * all - 2 * ghost - EDGE, lines = LINE * (wide ? 2 : 3), gpuTop = 2 * LINE + 8;
      const top = lines + 10 + 2 * ghost + EDGE, ribbon = top + PLATES * high + (wide ? 26 : 16);
      const foot = ribbon + thick + LINE + 2, bottom = foot + lines - LINE + 6;
      const gpu = { x: (wide ? 0.36 : 0.52) * all, y: gpuTop, size: wide ? 0.18 * all : Math.min(160, 0.25 * all) };
      const hall = wide ? { x: 0.59 * all, y: gpuTop, wide: 0.41 * all, high: bottom - gpuTop } : { x: gpu.x, y: gpuTop + gpu.size + LINE, wide: 0.48 * all };
      hall.high ??= foot - LINE - hall.y;
      return { wide, block, high, thick, ghost, hall, gpu, top, ribbon, foot, bottom };
    }
    function dots({ hall }, most) {
      const servers = most / 8, across = 2 ** Math.round(Math.log2(Math.sqrt(servers * hall.wide / hall.high / 2))), aisle = hall.wide > 300 ? 5 : 3;
      const w = (hall.wide - (across / 8 - 1) * aisle) / across, rows = servers / across, h = (hall.high - (rows / 8 - 1) * aisle) / rows;
      return { size: 0.8 * Math.min(0.23 * w, 0.44 * h), place: (n) => {
        const server = Math.floor(n / 8), column = server % across, row = Math.floor(server / across);
        return [hall.x + column * w + Math.floor(column / 8) * aisle + (n % 4 + 0.5) * 0.23 * w, hall.y + row * h + Math.floor(row / 8) * aisle + (Math.floor(n % 8 / 4) + 0.5) * 0.44 * h];
      } };
    }
    function pieces(to, name, count, across, [wide, high], [x, y], [right, up]) {
      for (const [n, each] of to.entries()) {
        const w = (wide - (across - 1) * right) / across, h = (high - (count - 1) * up) / count;
        const left = x + n % across * (w + right), top = y + high - h - Math.floor(n / across) * (h + up);
        const d = name === "cell" ? EDGE : 0;
        each.place = [left, top, w, h];
        each.innerHTML = `<path class="top" d="M0 0l${d} ${-d}h${w}l${-d} ${d}z"/><path class="side" d="M${w} 0l${d} ${-d}v${h}l${-d} ${d}z"/>${box(0, 0, w, h, "")}`;
        each.style.transform = `translate(${left}px, ${top}px)`;
      }
    }
    const scenes = () => cases[chosen[0] * amounts + chosen[1]];
    function show(flies) {
      const it = scenes()[at], here = places(), { hall, gpu, top, ribbon, foot } = here, cut = (name, by) => (it.cuts.includes(name) ? by : 0);
      const from = [...cells, ...tokens].map((each) => each.place);
      svg.style.height = `${here.bottom}px`;
      const high = PLATES * here.high;
      pieces(cells, "cell", PLATES, COLUMNS, [here.block, high], [1, top], [cut("width", here.wide ? 12 : 8) || cut("experts", 3), cut("depth", here.wide ? 4 : 3)]);
      pieces(tokens, "token", TOKENS, SEQUENCES, [here.block, here.thick], [1, ribbon], [cut("batch", here.wide ? 5 : 3), cut("tokens", 3)]);
      cells.forEach((each, n) => { each.dataset.part = it.block[n]; });
      tokens.forEach((each, n) => { each.dataset.part = it.cuts.includes("batch") && n % SEQUENCES || it.cuts.includes("tokens") && n ? 0 : 2; });
      part("ghosts").innerHTML = it.copies > 1 ? [2, 1].map((n) => box(1 + EDGE + n * here.ghost, top - EDGE - n * here.ghost, here.block, high, "")).join("") : "";
      const count = Math.ceil(it.held), row = Math.ceil(Math.sqrt(count)), size = gpu.size / row, gap = row > 1 ? 2 : 0;
      part("squares").innerHTML = Array.from({ length: count }, (_, n) => {
        const full = Math.min(1, it.held - n) * (size - gap), x = gpu.x + n % row * size, y = gpu.y + Math.floor(n / row) * size;
        return box(x, y + size - gap - full, size - gap, full, `class="${n ? "over" : "full"}"`) + box(x, y, size - gap, size - gap, `class="brim${n ? "" : " first"}"`);
      }).join("");
      const { size: dot, place } = dots(here, it.most), waits = Math.round(it.share * it.gpus), [x, y] = place(0);
      for (const [name, first, last] of [["works", 0, it.gpus - waits], ["waits", it.gpus - waits, it.gpus], ["idle", it.gpus, it.most]]) {
        let d = "";
        for (let n = first; n < last; n++) d += `M${place(n).map((each) => each.toFixed(1)).join(" ")}h0`;
        part(name).setAttribute("d", d);
        part(name).style.strokeWidth = dot;
      }
      part("lens").innerHTML = `<path d="${here.wide ? `M${gpu.x + gpu.size} ${gpu.y}L${x} ${y}L${gpu.x + gpu.size} ${gpu.y + gpu.size}z` : `M${gpu.x} ${gpu.y + gpu.size}L${x} ${y}L${gpu.x + gpu.size} ${gpu.y + gpu.size}z`}"/><circle cx="${x}" cy="${y}" r="5"/>`;
      const word = (left, down, name, ...lines) => `<text x="${left}" y="${down}"><tspan class="name">${name}</tspan>${lines.map((text) => `<tspan x="${left}" dy="${LINE}">${text}</tspan>`).join("")}</text>`;
      const broken = (text) => (here.wide ? [text] : text.split(/: | (?=of )/));
      part("words").innerHTML = word(0, 14, "The model", ...broken(it.model)) + word(0, foot, "The batch", ...broken(it.batch))
        + word(gpu.x, 14, "One GPU", "a square: its memory") + word(hall.x, here.wide ? 14 : foot, "All GPUs", it.hall);
      meters.style.cssText = here.wide ? `position: absolute; left: ${gpu.x}px; top: ${gpu.y + gpu.size + 8}px; width: ${gpu.size}px` : "";
      state.innerHTML = it.words;
      const its = [it.name, it.gpus.toLocaleString("en")], fixed = it.name !== selects[0].options[chosen[0]].text;
      selects.forEach((each, n) => {
        if (fixed) each.append(Object.assign(others[n], { text: its[n] }));
        else others[n].remove();
        each.disabled = fixed;
        each.selectedIndex = fixed ? others[n].index : chosen[n];
      });
      [[it.fits, it.held], [it.waits, it.share]].forEach(([text, share], n) => {
        meters.children[n].querySelector("span").textContent = text;
        meters.children[n].querySelector("i i").style.width = `${100 * Math.min(1, share)}%`;
      });
      picture.classList.toggle("too-much", it.held > 1);
      output.textContent = `${at + 1} of ${knives.length}: ${knives[at].button.textContent}`;
      svg.setAttribute("aria-label", `${state.textContent} The model, ${it.model}; the batch, ${it.batch}; ${it.hall}.`);
      knives.forEach(({ item, button, name }, n) => {
        item.toggleAttribute("data-cuts", it.cuts.includes(name));
        button.setAttribute("aria-pressed", n === at);
      });
      part("flying").replaceChildren();
      if (flies && it.cuts.length && matchMedia("(prefers-reduced-motion: no-preference)").matches) fly(from, it, place);
    }
    function fly(from, it, place) {
      const batch = ["batch", "tokens"].includes(knives[at].name), source = batch ? from.slice(cells.length) : from.slice(0, cells.length);
      part("works").animate([{ opacity: 0.2 }, { opacity: 1 }], 1400);
      for (let n = 0; n < FLY; n++) {
        const [x, y, w, h] = source[Math.floor(n * source.length / FLY)], [toX, toY] = place(Math.floor(n * it.gpus / FLY));
        part("flying").insertAdjacentHTML("beforeend", box(0, 0, w, h, `class="${batch ? "token" : "cell"}"`));
        const piece = part("flying").lastChild;
        piece.animate([{ transform: `translate(${x}px, ${y}px)` }, { transform: `translate(${toX}px, ${toY}px) scale(0.2)` }],
          { duration: 800, delay: 10 * n, easing: "ease-in-out", fill: "backwards" }).onfinish = () => piece.remove();
      }
    }
    function move(to) {
      at = Math.min(knives.length - 1, Math.max(0, to));
      show(true);
      remember();
    }

    /* What differs from the start is in the address. */
    function remember() {
      const told = new URLSearchParams();
      selects.forEach(({ name, options }, n) => chosen[n] && told.set(name, options[chosen[n]].value));
      if (at) told.set("title.cut", knives[at].name);
      history.replaceState(history.state, "", `${location.pathname}${location.search}${told.size ? "#" : ""}${told}`);
    }
    function recall() {
      const fields = new URLSearchParams(location.hash.slice(1));
      selects.forEach(({ name, options }, n) => { chosen[n] = Math.max(0, [...options].findIndex(({ value }) => value === fields.get(name))); });
      at = Math.max(0, knives.findIndex(({ name }) => name === fields.get("title.cut")));
      show();
    }
    knives.forEach(({ button }, n) => { button.onclick = () => move(n); });
    selects.forEach((each, n) => {
      each.onchange = () => {
        chosen[n] = each.selectedIndex;
        move(at);
      };
      each.onkeydown = (event) => event.stopPropagation(); // its arrows choose
    });
    window.shardlabMoving(block, (by) => move(at + by));
    addEventListener("hashchange", recall);
    phone.addEventListener("change", inOrder);
    inOrder();
    addEventListener("resize", () => svg.clientWidth && show()); // on paper there is none
    recall();
  }
  window.shardlabStart(".moving.cuts", start);
})();
