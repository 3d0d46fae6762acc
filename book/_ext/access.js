/* What the theme leaves out: names that contain the words that are seen, a landmark for its sidebar, keys to scroll with. */
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const words = (element) => element.textContent.replace(/\s+/g, " ").trim();
  for (const button of document.querySelectorAll("button[aria-label], label[aria-label], a[aria-label], summary[aria-label]"))
    if (words(button) && !button.ariaLabel.toLowerCase().includes(words(button).toLowerCase())) button.ariaLabel = words(button);
  for (const summary of document.querySelectorAll("summary[aria-label]")) summary.removeAttribute("aria-label");
  for (const icon of document.querySelectorAll("button i[title]")) icon.removeAttribute("title"); // the button has a name
  for (const picture of document.querySelectorAll("figure .explorer-plot")) { // its name says what it is, its caption what it shows
    const figure = picture.closest("figure");
    const caption = figure.querySelector("figcaption");
    if (caption) picture.setAttribute("aria-describedby", (caption.id = `${figure.id}-caption`));
  }
  const sidebar = document.querySelector(".bd-sidebar-primary");
  sidebar?.setAttribute("role", "complementary");
  sidebar?.setAttribute("aria-label", "The book");
  const scrolls = (box) => box.scrollWidth > box.clientWidth + 1 && ["auto", "scroll"].includes(getComputedStyle(box).overflowX);
  const reach = () => {
    for (const box of document.querySelectorAll("pre, .wide, .text_html, .explorer-data, .pst-scrollable-table-container"))
      if (scrolls(box)) {
        const caption = box.querySelector("caption");
        box.tabIndex = 0;
        if (caption) Object.assign(box, { role: "group", ariaLabel: words(caption) });
      }
  };
  reach();
  addEventListener("resize", reach);
  document.addEventListener("toggle", reach, true);
});
