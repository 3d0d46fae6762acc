/* The search page: Sphinx shows the results, sections.js has what is searched. A hit leads to its section, where find.js marks
   the words. All-reduce, all_reduce and allreduce are one word. */
"use strict";

(() => {
  const joined = (text) => text.toLowerCase().replace(/(?<=\p{L})[-_](?=\p{L})/gu, "");
  const stem = (word) => (word.length > 6 ? word.replace(/(ations?|ate[ds]?|ating|ings?|e?[ds]|e)$/, "") : word); // accumul|ation
  const escaped = (text) => Object.assign(document.createElement("p"), { textContent: text }).innerHTML;
  const mark = (piece, index) => (index % 2 ? `<mark>${escaped(piece)}</mark>` : escaped(piece)); // every other piece is a hit
  const marked = (text, pattern) => text.split(pattern).map(mark).join("");
  const AROUND = 90; // letters before and after the first hit of an excerpt

  const pages = new Map(); // all words of each page, for a query that no single section answers

  for (const each of shardlabSections) {
    each.heads = [joined(each.title), joined(each.name)];
    each.words = joined(`${each.name} ${each.title} ${each.also} ${each.text}`);
    each.first = each.title === each.name;
    pages.set(each.page, `${pages.get(each.page) ?? ""} ${each.words}`);
  }

  function score(section, words) {
    const holds = (text) => words.every((word) => text.includes(word));
    if (!holds(section.words)) return section.first && holds(pages.get(section.page)) ? 1 : 0;
    const [title, name] = section.heads.map((head) => words.filter((word) => head.includes(word)).length / words.length);
    const often = words.reduce((sum, word) => sum + section.words.split(word).length - 1, 0);
    return Math.min(often, 20) + 40 * title + (section.first ? 100 : 10) * name;
  }

  function excerpt(text, pattern) {
    const at = Math.max(text.search(pattern), 0);
    const [from, to] = [Math.max(at - AROUND, 0), at + AROUND];
    const piece = `${from ? "…" : ""}${text.slice(from, to)}${to < text.length ? "…" : ""}`;
    return marked(piece, pattern);
  }

  Search._performSearch = (query) => {
    const words = joined(query).split(/\s+/).filter(Boolean).map(stem);
    if (!words.length) return [];
    const pattern = anyOf(words);
    const found = shardlabSections.map((section) => [score(section, words), section]).filter(([points]) => points);
    return found.sort(([one], [other]) => one - other).map(([points, { page, id, name, title, text, first }]) => {
      const place = marked(first ? name : `${name} › ${title}`, pattern);
      const shown = `<b>${place}</b> <span class="excerpt">${excerpt(text, pattern)}</span>`;
      return [page, shown, `?find=${encodeURIComponent(query)}#${id}`, null, points, `${page}.md`];
    });
  };
})();
