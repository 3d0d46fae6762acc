/* One backward, and its buckets on the network, at the time to which the reader moves the clock. */
(() => {
  const HIGH = 28, BACKWARD = 24, NETWORK = 96, TALL = 132;
  const rect = (name, x, y, width, height = HIGH) => `<rect class="${name}" x="${x}" y="${y}" width="${width}" height="${height}"/>`;

  function start(block) {
    const picture = block.querySelector(".buckets-picture"), state = block.querySelector(".buckets-state");
    const clock = block.querySelector("[type=range]"), overlap = block.querySelector("[type=checkbox]"), output = block.querySelector("output");
    const { layers, ready, sent, states, saved } = JSON.parse(picture.dataset.sendings);
    const ends = sent.map((messages) => messages.at(-1)[1]), last = Math.max(...ends);
    const backward = layers.reduce((sum, each) => sum + each), x = (second) => `${(100 * second / last).toFixed(3)}%`;
    let begun = 0;
    const borders = layers.map((each) => rect("buckets-layer", x((begun += each) - each), BACKWARD, x(each))).join("");
    picture.innerHTML = `<svg aria-hidden="true" height="${TALL}">
      <g class="buckets-saved">${rect("", x(ends[1]), BACKWARD - 4, x(ends[0] - ends[1]), NETWORK + HIGH - BACKWARD + 8)}
      <text text-anchor="end" x="100%" y="${BACKWARD + HIGH + 26}">saved: ${saved}</text></g>
      <text y="16">backward, the last layer first</text><g data-light="backward">${rect("buckets-done", 0, BACKWARD, x(backward))}${borders}</g>
      <text y="${NETWORK - 8}">network</text>${sent[0].map(([from, to]) =>
        `<g class="bucket" data-light="messages">${rect("buckets-done", 0, NETWORK, x(to - from))}${rect("buckets-edge", 0, NETWORK, x(to - from))}</g>`).join("")}
      ${rect("buckets-clock", -1, BACKWARD - 6, 2, NETWORK + HIGH - BACKWARD + 12)}</svg>`;
    const buckets = [...picture.querySelectorAll(".bucket")], done = picture.querySelector(".buckets-done");
    const fill = (bar, share) => { bar.style.transform = `scaleX(${Math.min(1, Math.max(0, share))})`; };
    let now;

    function show(second) {
      now = clock.value = second;
      const way = Number(overlap.checked), averaged = sent[way].filter(([, end]) => end <= second).length;
      buckets.forEach((bucket, n) => {
        const [from, to] = sent[way][n];
        bucket.style.transform = `translateX(${x(from)})`;
        bucket.classList.toggle("ready", ready[n] <= second);
        fill(bucket.firstChild, (second - from) / (to - from));
      });
      fill(done, second / backward);
      picture.querySelector(".buckets-clock").style.transform = `translateX(${x(second)})`;
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
    overlap.checked = true;
    show(sent[1][2][1]); // three buckets are averaged, and backward goes on
  }
  window.shardlabStart(".buckets", start);
})();
