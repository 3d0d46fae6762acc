/* A server and its wires: two GPUs that the reader touches, the path between them, and where it is narrow. */
(() => {
  const SLOW = 20, GAP = 0.8, HALF = 17; // slow motion; between two directions; a GPU
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const short = (part) => part.replace(/ (?=\d)/, "\u00a0").replace(/^NIC/, "card").replace("network", "the network");

  function start(block) {
    const picture = block.querySelector(".server-picture"), state = block.querySelector(".server-state");
    const { servers, start: first, gpus } = JSON.parse(picture.dataset.server), [shown, clock] = block.querySelectorAll("output");
    const hands = ["machine", "direct", "other"].map((name) => [...block.querySelectorAll(`[name="server-${name}"]`)]);
    const at = (inputs) => inputs.findIndex((input) => input.checked);
    let from, to, waits, frame;

    picture.innerHTML = `<div class="server-map"><svg viewBox="0 0 360 280" role="img"></svg>${Array.from({ length: gpus + 1 }, (_, n) =>
      `<button type="button"${n < gpus ? ` style="left:${(22.5 + 45 * n - HALF) / 3.6}%"` : ""}>${n < gpus ? n : "another server"}</button>`).join("")}</div><p class="server-key"></p>`;
    const svg = picture.querySelector("svg"), buttons = [...picture.querySelectorAll("button")];
    const name = (n) => (n < gpus ? `GPU ${n}` : "another server");

    /* One direction of a wire, or its strip for one of several messages, `by` beside the middle. */
    function line([, , , , x1, y1, x2, y2, bend], by = 0) {
      const long = Math.hypot(x2 - x1, y2 - y1), [dx, dy] = bend ? [by, 0] : [(y1 - y2) / long * by, (x2 - x1) / long * by];
      const curve = bend ? `C${x1 + dx} ${y1 + bend - by} ${x2 - dx} ${y2 + bend - by} ` : "L"; // one bow inside the other
      return `M${x1 + dx} ${y1 + dy}${curve}${x2 + (bend ? -dx : dx)} ${y2 + dy}`;
    }
    function turned([a, b, kind, width, x1, y1, x2, y2, bend], back) {
      return back ? [b, a, kind, width, x2, y2, x1, y1, bend] : [a, b, kind, width, x1, y1, x2, y2, bend];
    }
    /* The paths of the messages as they are sent: hops are twice the wire's number, and one more on the way back. */
    function messages() {
      const ways = servers[at(hands[0])].ways[at(hands[1])], way = (a, b) => ways[a * (gpus + 1) + b];
      const beside = () => way(from ^ 1, to < gpus ? to ^ 1 : to), back = () => way(from, to).map((hop) => hop ^ 1).reverse();
      const answer = () => (to < gpus ? way(to, from) : back());
      return [way(from, to), ...[[], [beside()], [answer()]][at(hands[2])]];
    }
    /* GPUDirect is chosen only where it changes the path. */
    function spare() {
      const { ways } = servers[at(hands[0])], n = from * (gpus + 1) + to, set = hands[1][0].closest("fieldset");
      set.disabled = String(ways[0][n]) === String(ways[1][n]);
      set.querySelector("legend").textContent = set.disabled ? "GPUDirect: no difference here" : "GPUDirect";
    }
    function outcome() {
      const { outcomes, ends } = servers[at(hands[0])];
      return outcomes[ends[at(hands[1])][from * (gpus + 1) + to][at(hands[2])]];
    }
    function show() {
      const { parts, bar, wires, rates, links } = servers[at(hands[0])], sent = messages();
      const [rate, takes, , narrow] = outcome(), scale = svg.clientWidth / 360;
      const used = (hop) => sent.flatMap((hops, n) => (hops.includes(hop) ? [n] : []));
      const strips = sent.flatMap((hops, n) => hops.map((hop) => {
        const wire = wires[hop >> 1], both = used(hop ^ 1).length, sharing = used(hop), width = Math.max(1, wire[3] / sharing.length);
        const side = both ? (hop & 1 ? -1 : 1) * (wire[3] / 2 + GAP) : 0;
        return { hop, n, width, d: line(wire, side + (sharing.indexOf(n) - (sharing.length - 1) / 2) * width) };
      }));
      const glow = narrow.length < sent[0].length ? narrow.map((place) => sent[0][place]) : [], glows = strips.filter(({ hop, n }) => !n && glow.includes(hop));
      svg.innerHTML = `${wires.map((wire) => `<path class="server-wire" d="${line(wire)}" stroke-width="${wire[3]}"/>`).join("")}
        ${glows.map(({ d, width }) => `<path class="server-glow" d="${d}" stroke-width="${width + 9}"/>`).join("")}
        ${strips.map(({ d, n, width }) => `<path class="server-sent-${n}" d="${d}" stroke-width="${width}"/>`).join("")}
        ${bar ? '<rect x="4" y="255" width="352" height="20" rx="3"/><text x="180" y="269">NVSwitch</text>' : ""}
        ${parts.filter(([part]) => !part.startsWith("GPU")).map(([part, x, y]) => {
          const [kind, number] = part.split(/ (?=\d)/), wide = { CPU: 48, NIC: 15 }[kind];
          return wide ? `<rect x="${x - wide / 2}" y="${y - 10}" width="${wide}" height="20" rx="3"/><text x="${x}" y="${y + 4.5}">${kind === "CPU" ? part : number}</text>` : `<circle cx="${x}" cy="${y}" r="5.5"/>`;
        }).join("")}${sent.map((hops, n) => `<path class="server-way" d="${hops.map((hop, k) => line(turned(wires[hop >> 1], hop & 1)).replace(k ? "M" : "", k ? "L" : "")).join("")}"/><circle class="server-drop server-sent-${n}" r="5"/>`).join("")}`;
      const ends = (hop) => turned(wires[hop >> 1], hop & 1).slice(0, 2).map(short), wide = (hop) => ends(hop).join(" → ");
      const narrower = !glow.length ? "No wire of the path is narrower than the others." : `The narrowest ${glow.length > 1 ? "wires are" : "wire is"} ${glow.map(wide).join(" and ")}.`;
      const shared = sent.length > 1 ? sent[0].some((hop) => sent[1].includes(hop)) ? " The orange message shares wires with it." : " The orange message shares no wire with it." : "";
      const none = links && to < gpus && !sent[0].some((hop) => wires[hop >> 1][2] === "NVLink") ? ` This pair has none of a GPU’s ${links} of NVLink.` : "";
      state.innerHTML = waits ? `From <b>${name(from)}</b>. Touch where the message goes.` : `From ${name(from)} to ${name(to)}: <b>${rate}</b>, so 1 GB takes <b>${takes}</b>. ${narrower}${none}${shared}`;
      svg.setAttribute("aria-label", `${state.textContent} ${servers[at(hands[0])].name}: ${[ends(sent[0][0])[0], ...sent[0].map((hop) => ends(hop)[1])].join(" → ")}.`);
      shown.textContent = `${from} to ${to < gpus ? to : "outside"}`;
      picture.classList.toggle("waits", Boolean(waits));
      buttons.forEach((button, n) => {
        button.className = n === from ? "from" : n === to && !waits ? "to" : "";
        button.setAttribute("aria-label", `${name(n)}${n === from ? ", sends" : n === to ? ", receives" : ""}`);
      });
      picture.querySelector(".server-key").innerHTML = `${rates.map(([kind, told, width]) => `<span><svg width="24" height="${scale * width}"><path class="server-wire" d="M0 ${scale * width / 2}h24" stroke-width="${scale * width}"/></svg>${{ host: "between processors", network: "network" }[kind] ?? kind} ${told}</span>`).join("")}<span><i class="card">0</i>network card</span><span><i class="switch"></i>PCIe switch</span>`;
      spare();
      flow(1);
    }
    /* A drop for each message, as fast as its narrowest wire, in slow motion; at the end the clock stands at what 1 GB takes. */
    function flow(least = calm.matches ? 1 : 0) {
      const [, takes, seconds] = outcome(), ways = [...svg.querySelectorAll(".server-way")], drops = [...svg.querySelectorAll(".server-drop")], began = performance.now();
      cancelAnimationFrame(frame);
      const tick = (now) => {
        const share = Math.min(1, Math.max(least, (now - began) / 1e3 / seconds / SLOW));
        drops.forEach((drop, n) => {
          const { x, y } = ways[n].getPointAtLength(share * ways[n].getTotalLength());
          drop.setAttribute("transform", `translate(${x} ${y})`);
          drop.style.visibility = share < 1 ? "" : "hidden";
        });
        clock.textContent = share < 1 ? `${(1e3 * share * seconds).toFixed(0)} ms, ${SLOW} times slowed` : takes;
        if (share < 1) frame = requestAnimationFrame(tick);
      };
      tick(began);
    }
    function touch(n) {
      if (!waits && n < gpus) {
        [from, waits] = [n, true];
        if (to === from) to = from ^ 1;
      } else if (n !== from) [to, waits] = [n, false];
      show();
      if (!waits) {
        flow();
        remember();
      }
    }

    buttons.forEach((button, n) => { button.onclick = () => touch(n); });
    block.querySelector(".server-clock button").onclick = () => flow();
    const remember = window.shardlabAddress(block, hands, (told) => {
      if (from !== first[0] || to !== first[1]) told.append("server.pair", `${from}-${to}`);
    }, (fields) => {
      const pair = /^([0-7])-([0-8])$/.exec(fields.get("server.pair"));
      [from, to] = pair && pair[1] !== pair[2] ? [Number(pair[1]), Number(pair[2])] : first;
      waits = false;
      show();
    });
    block.addEventListener("change", () => {
      show();
      remember();
    });
    for (const each of block.querySelectorAll("fieldset")) each.onkeydown = (event) => event.stopPropagation(); // its arrows choose
    window.shardlabMoving(block, (by) => {
      do to = (to + by + gpus + 1) % (gpus + 1); while (to === from);
      waits = false;
      show();
      remember();
    });
  }
  window.shardlabStart(".moving.server", start);
})();
