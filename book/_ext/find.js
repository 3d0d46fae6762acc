/* Marks the words that a reader has searched for, on the page and in the section that the search led to. */
"use strict";

function anyOf(words) { // a pattern that finds words with these beginnings, with hyphens or without; search.js asks it, too
  const letter = (one) => one.replace(/[\\^$.*+?()[\]{}|/]/, "\\$&"); // with the flag u no other letter may be escaped
  const start = (word) => (/^[\p{L}\p{N}]/u.test(word) ? "(?<![\\p{L}\\p{N}])" : "");
  const end = (word) => (start(word) ? "(?![\\p{L}\\p{N}])" : "");
  const rest = (word) => (/^\p{L}{3}/u.test(word) ? "\\p{L}*" : end(word)); // a stem stands for its words
  const pattern = (word) => `${start(word)}${Array.from(word, letter).join("[-_,]?")}${rest(word)}`;
  return new RegExp(`(${words.map(pattern).join("|")})`, "giu");
}

document.addEventListener("DOMContentLoaded", () => {
  const words = new URLSearchParams(location.search).get("find")?.split(/\s+/).filter(Boolean);
  const section = document.getElementById(location.hash.slice(1))?.closest("section, dl") ?? document.querySelector("article");
  if (!words?.length || !section) return;
  const pattern = anyOf(words);
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
