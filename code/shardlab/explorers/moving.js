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
  const joint = new RegExp(block.dataset.joint, "g");
  const join = (said) => { // in what is said a number keeps to its unit
    const texts = document.createTreeWalker(said, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replace(joint, "\u00a0");
  };
  for (const said of stage.querySelectorAll('[class$="-state"], .moving-meter, output')) {
    join(said);
    new MutationObserver(() => join(said)).observe(said, { childList: true, subtree: true });
  }
  block.classList.add("live");
  return light; // for parts that are drawn anew
};
/* What differs from the start is in the address: radios by themselves, anything else by `tell` and `heed`. Returns what writes it. */
window.shardlabAddress = (block, hands, tell, heed) => {
  const field = ({ name }) => name.replace("-", "."), own = field(hands[0][0]).replace(/[^.]*$/, "");
  const recall = () => {
    const fields = new URLSearchParams(location.hash.slice(1));
    for (const inputs of hands) (inputs.find((each) => each.value === fields.get(field(each))) ?? inputs[0]).checked = true;
    heed(fields);
    if ([...fields.keys()].some((key) => key.startsWith(own))) block.scrollIntoView();
  };
  addEventListener("hashchange", recall);
  recall();
  return () => {
    const told = new URLSearchParams();
    for (const [, ...others] of hands) for (const each of others) if (each.checked) told.append(field(each), each.value);
    tell(told);
    history.replaceState(history.state, "", `${location.pathname}${location.search}${told.size ? "#" : ""}${told}`);
  };
};
window.shardlabStart = (selector, start) => document.querySelectorAll(selector).forEach((block) => {
  try {
    start(block);
  } catch (error) {
    block.classList.add("failed"); // the table stays
    throw error;
  }
});
