/* One batch on four stages: the schedule, the clock and the microbatch that the reader chooses. Tiles keep their work and walk. */
(() => {
  const ROW = 64, TOP = 22, HIGH = 26, BLOCK = 8, LEFT = 104;
  const NAME = { F: "forward", I: "backward", W: "weights" };

  function start(block) {
    const picture = block.querySelector(".pipeline-picture"), state = block.querySelector(".pipeline-state");
    const { tick, piece, last, most, walks } = JSON.parse(picture.dataset.pipeline);
    const hands = ["schedule", "message", "microbatch"].map((name) => [...block.querySelectorAll(`[name="pipeline-${name}"]`)]);
    const [schedules, messages, microbatches] = hands, START = 11 * tick; // where the clock stands at first
    const clock = block.querySelector("[type=range]"), output = block.querySelector("output"), top = (lane) => lane * ROW + TOP;
    const x = (time) => `${(100 * time / last).toFixed(3)}%`, per = walks[0].starts.length / (microbatches.length - 1);
    const tile = (n) => `<g class="pipeline-tile" data-light="${NAME["FIW"[n % 3]]}"><rect class="pipeline-${"FIW"[n % 3]}" width="${x(piece)}" height="${HIGH}"/>
      <rect class="pipeline-edge" width="1" height="${HIGH}"/>${n % per < per / 2 ? "" : '<path d="M0 0h7l-7 7z"/>'}</g>`;
    const number = (n) => `<text class="pipeline-number" data-light="${NAME["FIW"[n % 3]]}" y="17">${Math.floor(n / per)}</text>`;
    const pile = (peak, lane) => `<g data-light="held"><text y="${lane * ROW + 15}">stage ${lane} holds</text>
      ${Array.from({ length: 2 * peak }, (_, n) => `<rect class="pipeline-held" x="${LEFT + n * BLOCK}" y="${lane * ROW + 4}" width="${BLOCK - 2}" height="12"/>`).join("")}
      <text class="pipeline-amount" x="${LEFT + 2 * peak * BLOCK + 6}" y="${lane * ROW + 15}"></text></g>`;
    const ends = top(most.length - 1) + HIGH, tens = [...Array(Math.floor(last / tick / 10) + 1).keys()].map((n) => 10 * n);
    picture.innerHTML = `<svg role="img">
      <g class="pipeline-gaps" data-light="waits"></g>${[tile, number].map((drawn) => walks[0].starts.map((_, n) => drawn(n)).join("")).join("")}
      ${tens.map((n) => `<line class="pipeline-tick" x1="${x(n * tick)}" x2="${x(n * tick)}" y1="${ends}" y2="${ends + 5}"/><text x="${x(n * tick)}" y="${ends + 19}">${n || "tick 0"}</text>`).join("")}
      <g class="pipeline-thread"></g><g class="pipeline-hand"><rect x="-1" y="${TOP - 4}" width="2" height="${ends - TOP + 10}"/></g>${most.map(pile).join("")}</svg>
      <p class="pipeline-key">${[["F", "forward"], ["I", "backward"], ["W", "weights", "weight gradients apart"], ["gap", "waits"], ["held", "held", "half a microbatch held"]].map(([look, name, words]) =>
        `<span><i class="pipeline-${look}"></i><span class="lights-${name}">${words ?? name}</span></span>`).join("")}<span><i class="notch"></i>second chunk of a stage</span></p>`;
    const svg = picture.firstChild, tiles = [...svg.querySelectorAll(".pipeline-tile")], numbers = [...svg.querySelectorAll(".pipeline-number")], amounts = [...svg.querySelectorAll(".pipeline-amount")];
    const at = (inputs) => inputs.findIndex((input) => input.checked);
    const shown = () => walks[at(schedules) + at(messages) * schedules.length];
    let now;

    function show() {
      const walk = shown(), mine = at(microbatches) - 1;
      svg.setAttribute("aria-label", `Tiles of eight microbatches on four lanes. ${walk.state}`);
      svg.setAttribute("class", `${walk.look}${mine < 0 ? "" : " following"}`);
      tiles.forEach((each, n) => {
        const long = Number(walk.leads[n]), edge = each.querySelector(".pipeline-edge"), text = numbers[n];
        for (const part of [each, text]) part.style.transform = `translate(${x(walk.starts[n])}, ${top(walk.lanes[Math.floor(n % per / 3)])}px)`;
        for (const part of [each, text]) part.classList.toggle("mine", Math.floor(n / per) === mine);
        for (const part of [edge, text]) part.style.visibility = long ? "" : "hidden";
        text.setAttribute("x", x(long * piece / 2));
      });
      const gap = ([lane, from, to]) => `<rect class="pipeline-gap" x="${x(from)}" y="${top(lane)}" width="${x(to - from)}" height="${HIGH}"/>`;
      svg.querySelector(".pipeline-gaps").innerHTML = walk.gaps.map(gap).join("");
      const line = ([lane, from, other, to]) => `<line class="${lane === other ? "stays" : ""}" x1="${x(from)}" y1="${top(lane) + HIGH / 2}" x2="${x(to)}" y2="${top(other) + HIGH / 2}"/>`;
      svg.querySelector(".pipeline-thread").innerHTML = (walk.threads[mine] ?? []).map(line).join("");
      state.textContent = [walk.state, walk.followed[mine]].join(" ");
      move(now);
    }
    function move(time) {
      const walk = shown();
      now = clock.value = Math.min(last, Math.max(0, time));
      svg.querySelector(".pipeline-hand").style.transform = `translateX(${x(now)})`;
      amounts.forEach((text, lane) => {
        const held = walk.held[lane].findLast(([from]) => from <= now)?.[1] ?? 0;
        text.parentNode.querySelectorAll("rect").forEach((each, n) => each.classList.toggle("full", n < held));
        text.textContent = held / 2;
      });
      output.textContent = `tick ${now / tick}`;
      clock.setAttribute("aria-valuetext", `${output.textContent}: stages hold ${amounts.map((each) => each.textContent).join(", ")} microbatches`);
    }

    clock.max = last;
    const remember = window.shardlabAddress(block, hands, (told) => {
      if (now !== START) told.append("pipeline.tick", now / tick);
    }, (fields) => {
      now = fields.has("pipeline.tick") ? tick * fields.get("pipeline.tick") || 0 : START;
      show();
    });
    clock.oninput = () => move(Number(clock.value));
    block.addEventListener("change", (event) => {
      if (event.target !== clock) show();
      remember();
    });
    svg.onclick = (event) => {
      const n = tiles.indexOf(event.target.closest(".pipeline-tile")), chosen = 1 + Math.floor(n / per);
      microbatches[chosen === at(microbatches) ? 0 : chosen].checked = true; // again: none
      show();
      remember();
    };
    for (const each of block.querySelectorAll("fieldset")) each.onkeydown = (event) => event.stopPropagation(); // its arrows choose
    window.shardlabMoving(block, (by) => {
      move(tick * (by > 0 ? Math.floor(now / tick) + 1 : Math.ceil(now / tick) - 1));
      remember();
    });
  }
  window.shardlabStart(".moving.pipeline", start);
})();
