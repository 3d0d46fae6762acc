/* The picture of the title page. It shows the step that the reader has come to; nothing moves by itself. */
(() => {
  const tiles = (name, count, across, at) => {
    const size = 104 / across, each = [];
    for (let n = 0; n < count; n++) {
      const x = at + (n % across) * size, y = 20 + Math.floor(n / across) * size;
      each.push(`<rect class="${name}" x="${x}" y="${y}" width="${size - 1}" height="${size - 1}"/>`);
    }
    return each.join("");
  };
  const words = (texts, y) => texts.map((text, n) => `<text x="${n * 128 + 52}" y="${y}">${text}</text>`).join("");
  const meter = (name, question) => `<p class="moving-meter" data-meter="${name}"><b>${question}</b> <span></span><i><i></i></i></p>`;

  function start(block) {
    const stage = block.querySelector(".moving-stage"), picture = stage.querySelector(".cuts-picture");
    const steps = [...block.querySelectorAll("li")];
    const squares = Math.ceil(Math.max(...steps.map((step) => step.dataset.held)));
    picture.innerHTML = `<svg viewBox="-1 0 362 158">${words(["<tspan>the batch</tspan>", "<tspan>the model</tspan>", "<tspan>on each GPU</tspan>"], 13)}
      ${tiles("batch", 64, 8, 0)}${tiles("model", 64, 8, 128)}${tiles("memory", squares, 10, 256)}
      ${words(["sequences × tokens", "layers × width", "a square: one GPU"], 138)}
      <text x="180" y="154">filled: on one GPU, pale: fetched when needed, empty: on others</text></svg>
      ${meter("fits", "Does it fit?")}${meter("waits", "Waits for?")}`;
    const [fits, waits] = picture.querySelectorAll("p");
    let shown;

    function show(step) {
      shown = step;
      const { held, share, ...data } = step.dataset;
      for (const each of steps) each.toggleAttribute("data-shown", each === step);
      for (const name of ["batch", "model"])
        picture.querySelectorAll(`.${name}`).forEach((tile, n) => { tile.dataset.part = data[name][n]; });
      picture.querySelectorAll(".memory").forEach((tile, n) => { tile.style.fillOpacity = Math.min(1, Math.max(0, held - n)); });
      for (const [line, text, part] of [[fits, data.fits, held], [waits, data.waits, share]]) {
        line.querySelector("span").textContent = text;
        line.querySelector("i i").style.width = `${100 * Math.min(1, part)}%`;
      }
      picture.classList.toggle("too-much", held > 1);
      const name = step.querySelector("strong").textContent;
      stage.querySelector("output").textContent = `${steps.indexOf(step) + 1} of ${steps.length}: ${name}`;
    }

    /* The height at which one reads, beside the picture or below it. A low window leaves no room for a picture that stays. */
    const stays = () => getComputedStyle(stage).position === "sticky";
    function line(top) {
      const { left, height } = stage.getBoundingClientRect();
      const beside = left > steps[0].getBoundingClientRect().left + 100;
      return top + (beside ? 0.3 * height : height + 40);
    }
    function follow() {
      if (shown && !stays()) return;
      const height = line(stage.getBoundingClientRect().top);
      const reached = steps.filter((step) => step.getBoundingClientRect().top < height).pop() ?? steps[0];
      if (reached !== shown) show(reached);
    }
    function go(by) {
      const step = steps[steps.indexOf(shown) + by];
      if (!step) return;
      const past = step.getBoundingClientRect().top - line(parseFloat(getComputedStyle(stage).top));
      if (stays()) scrollBy({ top: past + 2, behavior: "instant" });
      show(step);
    }
    addEventListener("scroll", follow, { passive: true });
    addEventListener("resize", follow);
    window.shardlabMoving(block, go);
    follow();
  }
  window.shardlabStart(".cuts", start);
})();
