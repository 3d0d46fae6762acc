/* A program that lacks a redistribution, and what two ranks hold: the reader chooses the line before which it belongs. */
(() => {
  function start(block) {
    const picture = block.querySelector(".missing-picture"), state = block.querySelector(".missing-state"), output = block.querySelector("output");
    const puzzles = JSON.parse(picture.dataset.missing), found = new Set(), safe = (text) => text.replace(/[<&]/g, (it) => `&#${it.charCodeAt()};`);
    let now = 0, tried = -1; // the puzzle, and the line chosen last
    const cells = (held, bits) => [0, 1].map((rank) => `<span${bits >> rank & 1 ? ' class="wrong"' : ""}>${held.split("|")[rank] ?? ""}</span>`).join("");
    const row = (code, look, kind, forward, backward, bits) => `<li class="missing-${kind[0]} ${look}">${code}<i title="state">${kind}</i>${cells(forward, bits)}${cells(backward, bits >> 2)}</li>`;

    picture.innerHTML = `<p class="missing-name"></p><div class="missing-lines" role="region" aria-label="The program" tabindex="0">
      <div class="missing-head"><span>forward ↓</span><span>backward ↑</span><span>rank 0</span><span>rank 1</span><span>rank 0</span><span>rank 1</span></div><ol></ol></div>
      <p class="missing-key">${[["I", "invariant"], ["R", "replicated"], ["S", "sharded"], ["P", "partial"]].map(([kind, word]) => `<span class="missing-${kind}"><i>${kind}</i> ${word}</span>`).join("")}<span><b class="wrong">7</b> wrong</span></p>`;
    const scrolled = picture.querySelector(".missing-lines"), list = picture.querySelector("ol");

    function show() {
      const { name, arrow, inputs, gap, missing, rows, first, helps, told, why } = puzzles[now], done = found.has(now);
      const lines = rows.map(([code, kind, forward, backward, bits, ...news], at) => {
        const n = at - inputs, words = safe(code), healed = [kind, forward, backward].map((old, at) => news[at] || old);
        const line = n < 0 ? `<code>${words}</code>` : `<button type="button" value="${n}"${done ? " disabled" : n === tried ? ' class="tried"' : ""}><b>${n + 1}</b><code>${words}</code></button>`;
        return done ? row(line, "", ...healed, 0) : row(line, "", kind, forward, backward, bits);
      });
      const [code, ...its] = missing;
      if (done) lines.splice(gap, 0, row(`<code>${safe(code)}</code>`, "missing-healed", ...its, 0));
      picture.querySelector(".missing-name").textContent = `${name}, without ${arrow}`;
      list.innerHTML = lines.join("");
      const seen = list.children[done ? gap : first];
      if (done || tried < 0) scrolled.scrollTop = seen.offsetTop - (scrolled.clientHeight - seen.offsetHeight) / 2;
      const help = helps[tried], said = help ? `line ${help} would still be refused` : "nothing that it reads is in the state from which the arrow starts";
      state.innerHTML = done ? `<b>Found.</b> Without ${arrow}, ${safe(why)}`
        : `<b>${told}</b> ${tried < 0 ? `Before which line does ${arrow} belong?` : `Not before line ${tried + 1}: ${said}.`}`;
      output.textContent = `Puzzle ${now + 1} of ${puzzles.length}, ${found.size} found`;
    }

    /* What differs from the start is in the address. */
    function remember() {
      const told = new URLSearchParams();
      if (now) told.set("missing.puzzle", now + 1);
      if (found.size) told.set("missing.found", [...found].map((n) => n + 1).join("."));
      history.replaceState(history.state, "", `${location.pathname}${location.search}${told.size ? "#" : ""}${told}`);
    }
    function recall() {
      const fields = new URLSearchParams(location.hash.slice(1)), known = (n) => puzzles[n - 1];
      now = known(fields.get("missing.puzzle")) ? fields.get("missing.puzzle") - 1 : 0;
      tried = -1;
      found.clear();
      (fields.get("missing.found") ?? "").split(".").filter(known).forEach((n) => found.add(n - 1));
      show();
      if ([...fields.keys()].some((each) => each.startsWith("missing."))) block.scrollIntoView();
    }
    picture.onclick = (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      tried = Number(button.value);
      if (puzzles[now].helps[tried] < 0) found.add(now);
      show();
      (picture.querySelector(".tried:enabled") ?? block.querySelector(".moving-steps button:last-child")).focus({ preventScroll: true });
      remember();
    };
    window.shardlabMoving(block, (by) => {
      now = (now + by + puzzles.length) % puzzles.length;
      tried = -1;
      show();
      remember();
    });
    addEventListener("hashchange", recall);
    recall();
  }
  window.shardlabStart(".moving.missing", start);
})();
