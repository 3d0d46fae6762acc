/* Two all-reduces on one clock, which only the reader moves. A tile is a piece of a rank's buffer. */
(() => {
  const SEAT = [[30, 28], [150, 28], [150, 116], [30, 116]], HUB = [90, 72], WIDE = 52, HIGH = 15;
  const between = ([x, y], [u, v], share) => [x + share * (u - x), y + share * (v - y)];

  /* A tile fills up with the numbers of one rank after the other; green: the whole sum. */
  function tile(x, y, width, share, name = "") {
    const full = share * HIGH;
    return `<g class="${name}" data-light="tile"><rect class="race-back" x="${x}" y="${y}" width="${width}" height="${HIGH}"/>
      <rect class="${share === 1 ? "race-sum" : "race-part"}" x="${x}" y="${y + HIGH - full}" width="${width}" height="${full}"/>
      <rect class="race-edge" x="${x}" y="${y}" width="${width}" height="${HIGH}"/></g>`;
  }

  /* The two directions of a link: the left line of each carries what its rank sends. */
  function link(rank, busy) {
    const [x, y] = SEAT[rank], [u, v] = HUB;
    const length = Math.hypot(u - x, v - y), across = [-(v - y) / length, (u - x) / length];
    return ["out", "in"].map((way) => {
      const by = way === "out" ? -4.5 : 4.5, [a, b] = across.map((each) => each * by), lit = busy.has(`${way} ${rank}`);
      return `<g class="race-link${lit ? " lit" : ""}" data-light="link"><path d="M${x + a} ${y + b}L${u + a} ${v + b}"/>
        <circle cx="${(x + u) / 2 + a}" cy="${(y + v) / 2 + b}" r="4"/></g>`;
    }).join("");
  }

  function draw({ held, moves }, step, share) {
    const buffers = held[step], ranks = buffers.length, width = WIDE / buffers[0].length, now = moves[step] ?? [];
    const place = (rank, piece) => [SEAT[rank][0] - WIDE / 2 + piece * width, SEAT[rank][1] - HIGH / 2];
    const busy = new Set(now.flatMap(([from, to]) => [`out ${from}`, `in ${to}`]));
    const own = buffers.map((row, rank) => row.map((count, piece) => tile(...place(rank, piece), width - 1, count / ranks)).join("")
      + `<text x="${SEAT[rank][0]}" y="${SEAT[rank][1] + (rank < 2 ? -12 : 21)}">rank ${rank}</text>`);
    const sent = now.map(([from, to, start]) => {
      const middle = between(HUB, between(SEAT[from], SEAT[to], 0.5), 0.5), half = [(width - 1) / 2, HIGH / 2];
      const via = middle.map((each, n) => each - half[n]), begin = place(from, start), end = place(to, start);
      const at = share < 0.5 ? between(begin, via, 2 * share) : between(via, end, 2 * share - 1);
      return share ? tile(...at, width - 1, buffers[from][start] / ranks, "race-sent") : "";
    });
    return `<svg viewBox="0 0 180 144">${buffers.map((_, rank) => link(rank, busy)).join("")}
      <rect class="race-hub" x="${HUB[0] - 21}" y="${HUB[1] - 10}" width="42" height="20" rx="3"/>
      <text x="${HUB[0]}" y="${HUB[1] + 4}">switch</text>${own.join("")}${sent.join("")}</svg>`;
  }

  function start(block) {
    const clock = block.querySelector("input"), output = block.querySelector("output");
    const arrivals = JSON.parse(clock.dataset.moments), last = arrivals.at(-1);
    const lanes = [...block.querySelectorAll(".race-lane")].map((lane) => {
      lane.insertAdjacentHTML("beforeend", `<p class="race-state"></p><div aria-hidden="true"></div><p class="moving-meter">Busiest link:<br><span></span><i><i></i></i></p>`);
      return { ...JSON.parse(lane.dataset.lane), lane };
    });
    const halves = lanes.flatMap(({ ends }) => ends.slice(1).map((end, n) => (end + ends[n]) / 2));
    const near = (second) => arrivals.some((each) => Math.abs(each - second) < last / 1000);
    const stops = [...arrivals, ...halves.filter((half) => !near(half))].sort((a, b) => a - b);

    function show(second) {
      clock.value = second;
      const told = lanes.map(({ lane, ...data }) => {
        const step = data.ends.filter((end) => end <= second).length - 1;
        const begun = data.ends[step], share = (second - begun) / (data.ends[step + 1] - begun) || 0;
        const [state, picture, meter] = lane.querySelectorAll(":scope > div, :scope > p");
        picture.innerHTML = draw(data, step, share);
        meter.querySelector("span").textContent = data.link[step];
        meter.querySelector("i i").style.width = `${100 * data.share[step]}%`;
        state.textContent = data.state[step];
        lane.classList.toggle("finished", step === data.moves.length);
        return `${lane.querySelector("b").textContent}: ${data.state[step]}`;
      });
      output.textContent = `${second.toFixed(2)} s`;
      clock.setAttribute("aria-valuetext", [output.textContent, ...told].join(", "));
      now = second;
      light?.();
    }
    let now, light;
    clock.oninput = () => show(Number(clock.value));
    light = window.shardlabMoving(block, (by) => {
      const next = by > 0 ? stops.find((stop) => stop > now) : stops.findLast((stop) => stop < now);
      if (next !== undefined) show(next);
    });
    show(stops[0]);
  }
  window.shardlabStart(".race", start);
})();
