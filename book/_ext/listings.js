/* A long listing begins with its first screen: a button shows the rest, and so does whoever finds a word there. */
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  for (const listing of document.querySelectorAll(".long-listing")) {
    const pre = listing.querySelector("pre"), button = document.createElement("button");
    const lines = pre.textContent.trimEnd().split("\n").length;
    const show = (whole) => {
      listing.classList.toggle("whole", whole);
      button.textContent = whole ? "Show the beginning only" : `Show all ${lines} lines`;
      button.ariaExpanded = whole;
      pre.scrollTop = 0;
    };
    button.type = "button";
    button.addEventListener("click", () => {
      show(!listing.classList.contains("whole"));
      if (!listing.classList.contains("whole")) listing.scrollIntoView({ block: "nearest" });
    });
    pre.addEventListener("scroll", () => pre.scrollTop && show(true)); // a browser has found a word below
    listing.after(button);
    show(false);
  }
});
