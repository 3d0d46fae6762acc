/* The memory of one GPU through one step, at the moment to which the reader moves the clock. */
(() => {
  const HIGH = 180, TOP = 6;
  const GB = (megabytes) => (megabytes / 1000).toFixed(1);

  function start(block) {
    const chart = block.querySelector(".memory-chart"), list = block.querySelector(".memory-parts");
    const clock = block.querySelector("[type=range]"), recompute = block.querySelector("[type=checkbox]");
    const output = block.querySelector("output"), state = block.querySelector(".memory-state");
    const { chip, capacity, parts, doing, stops, steps } = JSON.parse(chart.dataset.step);
    const names = Object.keys(parts);
    for (const step of steps) // at each moment the floor of each part, and the sum of all
      step.sums = step.times.map((_, n) => step.held.reduce((sums, part) => [...sums, sums.at(-1) + part[n]], [0]));
    const longest = Math.max(...steps.map(({ times }) => times.at(-1)));
    const most = Math.max(capacity, ...steps.flatMap(({ sums }) => sums.map((each) => each.at(-1))));
    const x = (time) => (100 * time / longest).toFixed(2), y = (held) => (TOP + HIGH * (1 - held / most)).toFixed(1);
    const largest = Math.max(...steps.flatMap(({ held, peak }) => held.map((part) => part[peak])));

    const area = ({ times, sums }, n) => {
      const edge = (k) => times.map((time, m) => `${x(time)},${y(sums[m][k]) - TOP}`);
      return `<polygon data-light="${names[n]}" fill="${parts[names[n]]}" points="${[...edge(n + 1), ...edge(n).reverse()].join(" ")}"/>`;
    };
    const curve = (step) => `<g class="memory-way">${names.map((_, n) => area(step, n)).join("")}</g>`;
    const words = ({ times, sums, peak }) => {
      const at = `${x(times[peak])}%`, top = sums[peak].at(-1);
      return `<g class="memory-way"><text x="${at}" dx="6" y="${Number(y(top)) + 6}">peak ${GB(top)} GB</text>
        <line x1="${at}" x2="${at}" y1="${TOP + HIGH}" y2="${TOP + HIGH + 4}"/><text x="${at}" y="${TOP + HIGH + 18}">backward</text></g>`;
    };
    chart.innerHTML = `<svg aria-hidden="true" height="${TOP + HIGH + 22}"><svg y="${TOP}" width="100%" height="${HIGH}" viewBox="0 0 100 ${HIGH}" preserveAspectRatio="none">
      ${steps.map(curve).join("")}<rect class="memory-later" width="100" height="${HIGH}"/></svg>${steps.map(words).join("")}
      <text y="${TOP + HIGH + 18}">forward</text><line class="memory-capacity" x2="100%" y1="${y(capacity)}" y2="${y(capacity)}"/>
      <text text-anchor="end" x="100%" y="${y(capacity) - 5}">capacity: ${chip}</text>
      <rect class="memory-clock" x="-1" width="2" height="${TOP + HIGH}"/></svg>`;
    list.innerHTML = names.map((name) => `<li><span class="lights-${name}">${name}</span>
      <i data-light="${name}" style="background: ${parts[name]}"></i><b></b></li>`).join("");
    const drawn = chart.querySelectorAll(".memory-way");
    let now;

    function show(moment) {
      now = clock.value = moment;
      const way = Number(recompute.checked), { times, held, sums, verdict } = steps[way];
      drawn.forEach((each, n) => each.classList.toggle("shown", n % 2 === way)); // areas, then words, of both ways
      for (const name of ["later", "clock"]) chart.querySelector(`.memory-${name}`).style.transform = `translateX(${x(times[moment])}%)`;
      [...list.children].forEach((row, n) => {
        row.querySelector("i").style.transform = `scaleX(${held[n][moment] / largest})`;
        row.querySelector("b").textContent = `${GB(held[n][moment])} GB`;
      });
      const sum = sums[moment].at(-1), over = sum - capacity;
      output.textContent = `${GB(sum)} GB`;
      state.textContent = `${doing[moment]}: ${over > 0 ? `${GB(over)} GB too much` : `${GB(-over)} GB free`}. ${verdict}`;
      clock.setAttribute("aria-valuetext", `${output.textContent}, ${state.textContent}`);
    }
    clock.max = doing.length - 1;
    clock.oninput = () => show(Number(clock.value));
    recompute.onchange = () => show(now);
    window.shardlabMoving(block, (by) => {
      const next = (by > 0 ? stops : stops.toReversed()).find((stop) => by * (stop - now) > 0);
      if (next !== undefined) show(next);
    });
    show(steps[0].peak);
  }
  window.shardlabStart(".memory-timeline", start);
})();
