/* One backward, and its buckets on the network, at the time to which the reader moves the clock. */
(() => {
  const WIDE = 356, HIGH = 22, BACKWARD = 18, NETWORK = 64;
  const rect = (name, x, y, width, height = HIGH) => `<rect class="${name}" x="${x}" y="${y}" width="${width}" height="${height}"/>`;

  function start(block) {
    const picture = block.querySelector(".buckets-picture"), state = block.querySelector(".buckets-state");
    const [clock, overlap] = block.querySelectorAll("input"), output = block.querySelector("output");
    const { layers, ready, sent, states, saved } = JSON.parse(picture.dataset.sendings);
    const ends = sent.map((messages) => messages.at(-1)[1]), last = Math.max(...ends);
    const backward = layers.reduce((sum, each) => sum + each), x = (second) => second / last * WIDE;
    let begun = 0;
    const borders = layers.map((each) => rect("buckets-layer", x((begun += each) - each), BACKWARD, x(each))).join("");
    picture.innerHTML = `<svg aria-hidden="true" viewBox="-2 0 360 92">
      <g class="buckets-saved">${rect("", x(ends[1]), BACKWARD - 4, x(ends[0] - ends[1]), NETWORK + HIGH - BACKWARD + 8)}
      <text text-anchor="middle" x="${x((ends[0] + ends[1]) / 2)}" y="${BACKWARD + 37}">saved: ${saved}</text></g>
      <text x="0" y="12">backward, the last layer first</text><g data-light="backward">${rect("buckets-done", 0, BACKWARD, x(backward))}${borders}</g>
      <text x="0" y="${NETWORK - 6}">network</text>${sent[0].map(([from, to]) =>
        `<g class="bucket" data-light="messages">${rect("buckets-done", 0, NETWORK, x(to - from) - 1.5)}${rect("buckets-edge", 0, NETWORK, x(to - from) - 1.5)}</g>`).join("")}
      ${rect("buckets-clock", -0.75, BACKWARD - 5, 1.5, NETWORK + HIGH - BACKWARD + 10)}</svg>`;
    const buckets = [...picture.querySelectorAll(".bucket")], done = picture.querySelector(".buckets-done");
    const fill = (bar, share) => { bar.style.transform = `scaleX(${Math.min(1, Math.max(0, share))})`; };
    let now;

    function show(second) {
      now = clock.value = second;
      const way = Number(overlap.checked), averaged = sent[way].filter(([, end]) => end <= second).length;
      buckets.forEach((bucket, n) => {
        const [from, to] = sent[way][n];
        bucket.style.transform = `translateX(${x(from)}px)`;
        bucket.classList.toggle("ready", ready[n] <= second);
        fill(bucket.firstChild, (second - from) / (to - from));
      });
      fill(done, second / backward);
      picture.querySelector(".buckets-clock").style.transform = `translateX(${x(second)}px)`;
      block.classList.toggle("overlapping", overlap.checked);
      state.textContent = states[way][averaged];
      output.textContent = `${(1000 * second).toFixed(0)} ms`;
      clock.setAttribute("aria-valuetext", `${output.textContent}, ${state.textContent}`);
    }
    clock.max = last;
    clock.oninput = () => show(Number(clock.value));
    overlap.onchange = () => show(now);
    window.shardlabMoving(block, (by) => {
      const stops = [0, ...sent[Number(overlap.checked)].flat(), backward, last].sort((a, b) => by * (a - b));
      const next = stops.find((stop) => by * (stop - now) > last / 1000);
      if (next !== undefined) show(next);
    });
    show(last);
  }
  window.shardlabStart(".buckets", start);
})();
