/* Every plan by memory and time. The reader moves the edge of the card: what is right of it turns pale, the fastest that fits is lit. */
(() => {
  const HIGH = matchMedia("(max-width: 40rem)").matches ? 290 : 380, TOP = 24, LINE = 17, TICKS = [1, 1.5, 2, 3, 4, 5, 6, 8];
  const LOOKS = ["again", "tensor", "data", "stages", "narrow"]; // of the wastes, in their order

  function start(block) {
    const picture = block.querySelector(".planner-picture"), state = block.querySelector(".planner-state");
    const { cards, start, most, row, rows, wastes, cases } = JSON.parse(picture.dataset.planner);
    const models = [...block.querySelectorAll("[type=radio]")], wall = block.querySelector("[type=range]"), output = block.querySelector("output");
    const x = (card) => 100 * card / most, y = (up) => TOP + HIGH * (1 - up / rows);
    const key = (word, n) => `<span><i class="planner-${LOOKS[n]}"></i><span class="lights-${LOOKS[n]}">${word}</span></span>`;
    const seen = new Set(cases.flatMap(({ dots }) => dots.flatMap((text) => (text.match(/.../g) ?? []).map((each) => parseInt(each, 16) % 6))));
    picture.innerHTML = `<svg role="img" style="height: ${HIGH + 48}px"><svg class="planner-cloud" y="${TOP}" width="100%" height="${HIGH}" viewBox="0 0 ${most} ${rows}" preserveAspectRatio="none">
        ${LOOKS.map((look) => `<path class="planner-${look}" data-light="${look}"/>`).join("")}<rect class="planner-pale" width="${most}" height="${rows}"/></svg><g class="planner-grid"></g>
      <g class="planner-wall"><line y1="${TOP - 6}" y2="${TOP + HIGH}"/><circle cy="${TOP - 6}" r="6"/></g><g class="planner-near"></g></svg>
      <p class="planner-key">Colour: what a step loses most time to.${wastes.map(key).filter((_, n) => seen.has(n)).join("")}<span class="planner-stand"></span></p><p class="planner-list"></p>`;
    const svg = picture.firstChild, cloud = svg.querySelector(".planner-cloud"), paths = [...cloud.querySelectorAll("path")];
    const chosen = () => Math.max(0, models.findIndex((each) => each.checked));
    let at, dragged;

    /* Draw what depends on the model: dots and grid. */
    function fill() {
      const { dots, stand, lowest } = cases[chosen()], drawn = paths.map(() => "");
      dots.forEach((text, card) => (text.match(/.../g) ?? []).forEach((each) => {
        const number = parseInt(each, 16);
        drawn[number % 6] += `M${card - 0.5} ${(rows - Math.floor(number / 6)).toFixed(1)}h0`;
      }));
      paths.forEach((path, n) => path.setAttribute("d", drawn[n]));
      block.querySelector(".planner-stand").textContent = `${(dots.join("").length / 3).toLocaleString("en")} dots stand for ${stand.toLocaleString("en")} plans.`;
      const ticks = [1, 10, 100].flatMap((ten) => TICKS.map((each) => each * ten)).filter((each) => each >= lowest && each < lowest * row ** rows * 0.98);
      svg.querySelector(".planner-grid").innerHTML = ticks.map((each) => Math.log(each / lowest) / Math.log(row)).map((up, n) =>
        `<line x2="100%" y1="${y(up)}" y2="${y(up)}"/><text y="${y(up) - 4}">${ticks[n]}${n === ticks.length - 1 ? " seconds a step" : ""}</text>`).join("")
        + [0, 40, 80, 120, 160, 200, most].map((card) => `<line x1="${x(card)}%" x2="${x(card)}%" y1="${TOP + HIGH}" y2="${TOP + HIGH + 5}"/>
          <text x="${x(card)}%" y="${TOP + HIGH + 19}" text-anchor="${card === most ? "end" : card ? "middle" : "start"}">${card || "0 GB"}</text>`).join("");
      show();
    }
    function show() {
      const { count, lit, walls } = cases[chosen()], card = cards[at], [best, fits, ties] = walls[at], { name, told, at: place, near } = lit[best];
      wall.value = card;
      output.textContent = `${card} GB`;
      state.innerHTML = `<b>${name}</b> is the fastest plan on cards of ${card} GB: ${told[0]}. It loses most to ${told[1]}. ${fits.toLocaleString("en")} of ${count.toLocaleString("en")} plans fit; ties within 4 %: ${ties}.`;
      wall.setAttribute("aria-valuetext", state.textContent);
      svg.setAttribute("aria-label", `On cards of ${card} GB the fastest plan is ${name}: ${told[0]}. One change leads to ${near.length} plans, of which ${near.filter(([, need]) => need > card).length} need more memory.`);
      svg.querySelector(".planner-pale").style.transform = `translateX(${x(card)}%)`;
      svg.querySelector(".planner-wall").style.transform = `translateX(${x(card)}%)`;
      const point = ([need, up]) => [(need - 0.5) / most * svg.clientWidth, y(up)], [left, top] = point(place), taken = [[left - 8, top - 5, 16]];
      const marks = near.map(([words, ...its]) => [words, its, ...point(its)]).sort((a, b) => a[3] - b[3]);
      taken.push(...marks.map(([, , cx, cy]) => [cx - 6, cy - 5, 12]));
      const bottom = TOP + HIGH - LINE, phone = svg.clientWidth < 500, drawn = marks.map(([words, [need], cx, cy], n) => {
        const label = phone ? `${n + 1}` : words, wide = 7 * label.length, right = cx + 12 + wide < svg.clientWidth, from = right ? cx + 12 : cx - 12 - wide;
        const free = (to) => to <= bottom && !taken.some(([a, b, c]) => a < from + wide && from < a + c && Math.abs(b - to) < LINE - 2);
        const to = [0, 8, 16, -8, 24, -16, 32, -24, -32, 40, -40, 48, -48].filter((by) => !phone || Math.abs(by) > 8).map((by) => Math.min(bottom, cy - 8 + by)).find(free) ?? cy - 8;
        taken.push([from, to, wide]);
        return `<path d="M${cx} ${cy}L${right ? from - 2 : from + wide + 2} ${to + 8}"/><circle class="${need <= card ? "" : "out"}" cx="${cx}" cy="${cy}" r="4"/>
          <text x="${right ? from : from + wide}" y="${to + 13}" text-anchor="${right ? "start" : "end"}">${label}</text>`;
      });
      block.querySelector(".planner-list").innerHTML = phone ? `After one change: ${marks.map(([words], n) => `<span><b>${n + 1}</b> ${words}</span>`).join(", ")}.` : "";
      svg.querySelector(".planner-near").innerHTML = `${marks.map(([, , cx, cy]) => `<line x1="${left}" y1="${top}" x2="${cx}" y2="${cy}"/>`).join("")}${drawn.join("")}<circle class="lit" cx="${left}" cy="${top}" r="7"/>`;
    }
    function move(to) {
      at = Math.min(cards.length - 1, Math.max(0, to));
      show();
    }

    wall.max = most; // the thumb stands above the wall
    const remember = window.shardlabAddress(block, [models], (told) => {
      if (at !== start) told.set("planner.card", cards[at]);
    }, (fields) => {
      const card = cards.indexOf(Number(fields.get("planner.card")));
      at = card < 0 ? start : card;
      fill();
    });
    const nearest = (to) => cards.reduce((best, card, n) => (Math.abs(card - to) < Math.abs(cards[best] - to) ? n : best), 0);
    const drag = (event) => move(nearest((event.clientX - svg.getBoundingClientRect().left) / svg.clientWidth * most));
    svg.onpointerdown = (event) => {
      svg.setPointerCapture(event.pointerId);
      dragged = true;
      drag(event);
    };
    svg.onpointermove = (event) => dragged && drag(event);
    svg.onpointerup = svg.onpointercancel = () => { dragged = false; remember(); };
    wall.oninput = () => move(nearest(wall.value) === at ? at + Math.sign(wall.value - cards[at]) : nearest(wall.value));
    block.addEventListener("change", (event) => {
      if (event.target !== wall) fill();
      remember();
    });
    block.querySelector("fieldset").onkeydown = (event) => event.stopPropagation(); // its arrows choose
    window.shardlabMoving(block, (by) => {
      move(at + by);
      remember();
    });
    addEventListener("resize", show);
  }
  window.shardlabStart(".moving.planner", start);
})();
