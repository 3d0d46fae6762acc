/* Sixteen ranks on two nodes: a rank's piece, its groups and their wires, for the rank and the order that the reader chooses. */
(() => {
  const AXES = ["tp", "dp", "pp"], NODE = 8, TOP = [58, 134], HALF = 14;
  const node = (rank) => Math.floor(rank / NODE), x = (rank) => 22.5 + 45 * (rank % NODE), y = (rank) => TOP[node(rank)];
  const crosses = ([a, b]) => node(a) !== node(b);
  const rect = (name, at, up, width, height) => `<rect class="${name}" x="${at}" y="${up}" width="${width}" height="${height}"/>`;

  /* Inside a node a wire is an arc, above the first and below the second; between nodes it goes straight, in a bend. */
  function path([a, b]) {
    const far = crosses([a, b]), out = (rank) => (node(rank) === 0) === far ? 1 : -1;
    const [from, to] = [a, b].map((rank) => y(rank) + out(rank) * HALF);
    const bend = far ? 18 : 8 + 6 * Math.abs(x(a) - x(b)) / 45;
    return `M${x(a)} ${from}C${x(a)} ${from + out(a) * bend} ${x(b)} ${to + out(b) * bend} ${x(b)} ${to}`;
  }

  /* Rows are stages, columns shares of tp, and in each piece a band for each replica's optimizer. */
  function pieces() {
    const sixteen = (tile) => Array.from({ length: 16 }, (_, n) => tile(n, 18 + (n >> 3) * 36)).join("");
    const tiles = sixteen((n, top) => rect("wires-model", (n >> 1 & 3) * 25, top + n % 2 * 17, 24, 17)) + sixteen((n, top) => rect("wires-batch", 116 + n % 8 * 12, top, 11, 34));
    return `<svg aria-hidden="true" viewBox="-1 0 215 106"><text x="50" y="11">the model</text><text x="164" y="11">the batch</text>${tiles}
      <text x="50" y="102">layers × width</text><text x="164" y="102">16 sequences</text></svg>`;
  }

  function start(block) {
    const picture = block.querySelector(".wires-picture"), output = block.querySelector("output");
    const { orders, shares } = JSON.parse(picture.dataset.wires), radios = [...block.querySelectorAll("input")];
    const wiresOf = ({ axes }, mine = []) => AXES.flatMap((axis, n) => axes[axis].flatMap((group) => group.wires.map((wire) => [wire, axis, group === mine[n]])));
    picture.innerHTML = `<p class="wires-state" aria-live="polite"></p><div class="wires-map"><svg aria-hidden="true" viewBox="0 0 360 192">
      ${rect("wires-node", 1, 1, 358, 77)}${rect("wires-node", 1, 114, 358, 77)}<text x="8" y="15">node 0</text><text x="8" y="185">node 1</text>
      ${wiresOf(orders[0]).map(([, axis]) => `<path data-light="${axis}"/>`).join("")}<text class="wires-net" x="180" y="100">network</text></svg>
      ${orders[0].places.map((_, rank) => `<button type="button" style="left:${(x(rank) - HALF) / 3.6}%;top:${(y(rank) - HALF) / 1.92}%">${rank}</button>`).join("")}</div>
      <div class="wires-piece">${pieces()}<p aria-live="polite"></p></div>
      <div class="wires-sent">${AXES.map((axis) => `<p class="moving-meter wires-${axis}" data-light="${axis}"><b>${axis}</b> <span></span><i><i></i><i></i></i></p>`).join("")}</div>`;
    const map = picture.querySelector(".wires-map"), buttons = [...map.querySelectorAll("button")], lines = [...map.querySelectorAll("path")];
    let chosen = 5;

    function draw(rank) {
      const order = orders[radios.findIndex((radio) => radio.checked)], [t, d, p] = order.places[rank];
      const mine = AXES.map((axis) => order.axes[axis].find((group) => group.ranks.includes(rank)));
      const about = (each) => [2, 0, 1].map((n) => shares[AXES[n]][order.places[each][n]]).join(", ");
      wiresOf(order, mine).forEach(([wire, axis, lit], n) => {
        lines[n].setAttribute("d", path(wire));
        lines[n].setAttribute("class", `wires-${axis}${lit ? " lit" : ""}${crosses(wire) ? " far" : ""}`);
      });
      buttons.forEach((button, each) => {
        button.dataset.in = each === rank ? "itself" : AXES[mine.findIndex((group) => group.ranks.includes(each))] ?? "";
        button.tabIndex = each === chosen ? 0 : -1;
        button.setAttribute("aria-pressed", each === chosen);
        button.setAttribute("aria-label", `rank ${each}: ${about(each)}`);
      });
      picture.querySelectorAll(".wires-model").forEach((tile, n) => { tile.dataset.part = n >> 1 !== p * 4 + t ? 0 : n % 2 === d ? 2 : 1; });
      picture.querySelectorAll(".wires-batch").forEach((tile, n) => { tile.dataset.part = n >> 3 === d ? 2 : 0; });
      picture.querySelector(".wires-piece p").textContent = `Rank ${rank}: ${about(rank)}.`;
      picture.querySelectorAll(".moving-meter").forEach((meter, n) => {
        meter.querySelector("span").textContent = mine[n].sent;
        meter.querySelectorAll("i i").forEach((bar, far) => { bar.style.width = `${100 * mine[n].share[far]}%`; });
      });
      picture.querySelector(".wires-state").textContent = order.state;
      output.textContent = `rank ${rank}`;
    }
    function choose(rank) {
      if (!buttons[rank]) return;
      const focused = buttons.includes(document.activeElement);
      draw(chosen = rank);
      if (focused) buttons[rank].focus();
    }
    buttons.forEach((button, rank) => {
      button.onclick = () => choose(rank);
      button.onpointerenter = (event) => { if (event.pointerType === "mouse") draw(rank); };
    });
    map.onpointerleave = () => draw(chosen);
    map.onkeydown = (event) => {
      const by = { ArrowUp: -NODE, ArrowDown: NODE }[event.key];
      if (by) event.preventDefault();
      if (by) choose(chosen + by);
    };
    const choice = block.querySelector("fieldset");
    choice.onchange = () => draw(chosen);
    choice.onkeydown = (event) => event.stopPropagation(); // its arrows choose an order
    radios[0].checked = true;
    window.shardlabMoving(block, (by) => choose(chosen + by));
    draw(chosen);
  }
  window.shardlabStart(".wires", start);
})();
