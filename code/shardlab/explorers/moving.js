/* A picture that only the reader moves: with two buttons or two keys. Its table is folded, but not on paper. */
window.shardlabMoving = (block, go) => {
  const stage = block.querySelector(".moving-stage"), [back, next] = stage.querySelectorAll(".moving-steps button");
  back.onclick = () => go(-1);
  next.onclick = () => go(1);
  stage.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || event.altKey || event.ctrlKey || event.metaKey) return; // Alt and an arrow: back in a browser's history
    event.preventDefault();
    go(by);
  });
  const details = block.querySelector("details");
  details.open = false;
  let open;
  addEventListener("beforeprint", () => { [open, details.open] = [details.open, true]; });
  addEventListener("afterprint", () => { details.open = open; });
  const words = (block.closest("section") ?? block).querySelectorAll('[class^="lights-"]');
  let chosen; // the parts of this name stay, the others fade
  const light = () => block.querySelectorAll("[data-light]").forEach((part) => part.toggleAttribute("data-lit", part.dataset.light === chosen));
  const buttons = [...words].map((word) => { // of the text and the picture
    const button = document.createElement("button"), name = word.className.slice("lights-".length);
    Object.assign(button, { type: "button", className: "moving-word", textContent: word.textContent, value: name });
    button.setAttribute("aria-pressed", "false");
    button.onclick = () => {
      chosen = chosen === name ? undefined : name;
      block.classList.toggle("lighting", chosen);
      light();
      buttons.forEach((each) => each.setAttribute("aria-pressed", each.value === chosen));
    };
    word.replaceWith(button);
    return button;
  });
  block.classList.add("live");
  return light; // for parts that are drawn anew
};
window.shardlabStart = (selector, start) => document.querySelectorAll(selector).forEach((block) => {
  try {
    start(block);
  } catch (error) {
    block.classList.add("failed"); // the table stays
    throw error;
  }
});
