/* Marks the words that a reader has searched for, on the page and in the section that the search led to. */
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const query = new URLSearchParams(location.search).get("find");
  const section = document.getElementById(location.hash.slice(1)) ?? document.querySelector("article");
  if (!query || !section) return;
  const plain = (word) => word.replace(/[-_]/g, "").split("").map((letter) => letter.replace(/[^\p{L}\p{N}]/u, "\\$&")).join("[-_]?");
  const pattern = new RegExp(query.trim().split(/\s+/).map(plain).join("|"), "giu");
  const walker = document.createTreeWalker(section, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walker.nextNode()) if (walker.currentNode.parentElement.closest("p, li, dt, dd, h1, h2, h3, td")) texts.push(walker.currentNode);
  for (const text of texts)
    for (const hit of [...text.data.matchAll(pattern)].reverse()) {
      const range = document.createRange();
      range.setStart(text, hit.index);
      range.setEnd(text, hit.index + hit[0].length);
      range.surroundContents(document.createElement("mark"));
    }
});
