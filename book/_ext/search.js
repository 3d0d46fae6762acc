/* The search: sections.js has what is searched, and nothing else is loaded. The rarer a word of the query is in the book, the
   more it counts (BM25), most of all in a title. A hit leads to its section, where find.js marks the words. */
"use strict";

(() => {
  const STOP = new Set(
    `a about after all am an and any are as at be before but by can could did do does doing each else even for from get got had has
     have how i if in into is it its just like many me more much my need no not of off on one only or other our out same should so
     some still such than that the their them then there these they this to too up us use used using very was way we were what when
     where which while who whose why will with without would yes you your vs please help question error`.split(/\s+/),
  );
  const WEIGHTS = { title: 6, also: 4, name: 1, text: 1 }; // what a word counts in each part of an entry,
  const LENGTHS = { title: 6, text: 150 }; // and how long the part usually is: in a longer one a word means less
  const BACK = /glossary|disagreements|measured|hardware|cheatsheet|notation|teaching|index|cite|bibliography|accessibility/;
  const SIDE = /^(exercises|sources|takeaway|the-journey-so-far|the-question|change-it-yourself|second-sitting.*)$/;
  const [SHOWN, AROUND] = [30, 90]; // hits; letters before and after the first word of an excerpt

  const [LEAST, APART] = [1 / 3, 0.55]; // of a query that a page must have to answer it; of words that nowhere stand together

  const split = (text) => text.toLowerCase().replace(/(?<=\d),(?=\d{3})/g, "").match(/[\p{L}\p{N}]+(?:[-_’'][\p{L}\p{N}]+)*/gu) ?? [];
  const parts = (word) => word.split(/[-_’']/);
  const joined = (word) => parts(word).join(""); // all-reduce, all_reduce and allreduce are one word
  const ending = /(?<=...)(isms?|ations?|ate[ds]?|ating|i?ed|ings?|ers?|(?<!s)s|ies|es|e|y)$/;
  const cut = (word) => word.replace(ending, "").replace(/([^aeiouls\d])\1$/, "$1"); // overlapp|ing: overlap
  const stem = (word) => (word.length > 4 && !/^\d/.test(word) ? cut(word) : word.replace(/(?<=...)(?<!s)s$/, ""));
  const stems = (words) => words.map((word) => stem(joined(word))).join(" ");
  const terms = (text) => split(text).flatMap((word) => [...new Set([joined(word), ...parts(word)])].map(stem));

  const index = new Map(); // word -> entry -> how often, weighted
  let vocabulary, glossary, defined; // its words; a term's words, by all of its letters; its entry, by the stems of its words
  const WEAK = 0.5; // what a number counts in a query, or a module before a name
  const PIECE = 60; // entries between two pauses, in which the page can answer

  const opening = (title) => title.split(": ")[0]; // many chapters have "What real systems do", or begin a title with it
  const openings = new Map();
  const bare = (title) => (openings.get(opening(title)) > 2 ? title.slice(opening(title).length + 2) : title);

  async function build() {
    for (const { title } of shardlabSections) openings.set(opening(title), (openings.get(opening(title)) ?? 0) + 1);
    for (const [at, entry] of shardlabSections.entries()) {
      if (at % PIECE === 0) await new Promise((then) => setTimeout(then));
      take(entry);
    }
    vocabulary = [...index.keys()];
    const names = shardlabSections.filter(({ id }) => id.startsWith("term-")).map((entry) => [split(entry.title.split(", ")[0]), entry]);
    glossary = new Map(names.map(([words]) => [words.map(joined).join(""), words]));
    defined = new Map(names.map(([words, entry]) => [stems(words), entry]));
  }

  function take(entry) {
    const { page, id, title, name } = entry;
    const rank = page.includes("reference") ? 0.3 : BACK.test(page) ? 0.6 : 1; // chapters stand before other pages
    const own = { ...entry, title: bare(title) };
    entry.worth = rank * (SIDE.test(id) ? 0.7 : 1) * (title === name ? 1.2 : 1);
    for (const [field, weight] of Object.entries(WEIGHTS)) {
      const words = terms(own[field]);
      const usual = LENGTHS[field] ?? words.length;
      entry[`${field}Words`] = ` ${words.join(" ")} `;
      for (const word of words) {
        if (!index.has(word)) index.set(word, new Map());
        const often = index.get(word);
        often.set(entry, (often.get(entry) ?? 0) + weight / (0.5 + (0.5 * Math.max(words.length, usual / 4)) / usual));
      }
    }
  }
  const uses = (word) => index.get(word)?.size ?? 0;
  const rarity = (word) => Math.log(1 + shardlabSections.length / (0.5 + index.get(word).size));

  function near(one, other) { // whether one edit makes a word of another: a letter more, less, changed or swapped
    const from = [...one].findIndex((letter, at) => letter !== other[at]);
    const [rest, left] = from < 0 ? ["", other.slice(one.length)] : [one.slice(from), other.slice(from)];
    const edited = [[1, 1], [1, 0], [0, 1]].some(([cut, skipped]) => rest.slice(cut) === left.slice(skipped));
    return edited || (rest[0] === left[1] && rest[1] === left[0] && rest.slice(2) === left.slice(2));
  }

  function known(word) { // the words of the book that a word means, and how likely: itself, those it begins, else those near it
    const korean = /\p{Script=Hangul}/u.test(word); // 병렬 begins 병렬화
    const begins = word.length > (korean ? 1 : 2) && !/^\d+$/.test(word); // 79 begins no 79.3
    const begun = vocabulary.filter((each) => begins && each.startsWith(word));
    const meant = new Map(begun.map((each) => [each, index.has(word) && !korean ? 0.25 : 0.8]));
    if (index.has(word)) meant.set(word, 1);
    if (meant.size || word.length < 4) return meant;
    const alike = vocabulary.filter((each) => Math.abs(each.length - word.length) < 2 && near(word, each));
    const most = Math.max(...alike.map(uses)); // the likeliest is what the book says most often
    return new Map(alike.map((each) => [each, (0.8 * uses(each)) / most]));
  }

  const FRAME = /^\s*(?:what(?: is|['’]?s| are| does)|define|(?:definition|meaning) of)\s+(?:(?:an?|the)\s)?(.+?)(?: means?)?\W*$/i;
  const AFTER = /^(.+?)\s+(?:meaning|definition|defined|explained)\W*$/i;

  function framed(query) { // whether a query asks what something is, and the entry that defines it
    const [, what] = FRAME.exec(query) ?? AFTER.exec(query) ?? [];
    return { asks: what !== undefined, what: what ?? query, definition: defined.get(stems(termed(split(what ?? query)))) };
  }

  function termed(words) { // with the glossary's terms as it writes them, though they are joined, divided or misspelt
    for (const size of [4, 3, 2, 1])
      for (let at = 0; at + size <= words.length; at += 1) {
        const some = words.slice(at, at + size).map(joined), key = some.join("");
        const strange = key.length > 5 && some.some((word) => !index.has(stem(word)));
        const term = glossary.get(key) ?? (strange && glossary.get([...glossary.keys()].find((each) => near(key, each))));
        if (term) return [...termed(words.slice(0, at)), ...term, ...termed(words.slice(at + size))];
      }
    return words;
  }

  function asked(query) { // for each word of the query what it means; stop words only if there is nothing else
    const camel = query.replace(/(?<=\p{Ll})(?=\p{Lu}\p{Ll})/gu, "-"); // OutOfMemoryError
    const words = termed(split(camel)).flatMap((word) => (index.has(stem(joined(word))) ? joined(word) : parts(word)));
    const modules = split(query.match(/[\p{L}_]+\.(?=\p{L})/gu)?.join(" ") ?? "").map(joined); // torch.distributed. before a name
    const weight = (word) => (modules.includes(word) || /^\d+[bk]?$/.test(word) ? WEAK : 1);
    const much = (word) => [...known(stem(word))].map(([each, likely]) => [each, likely * weight(word)]);
    const meant = words.map((word) => ({ told: !STOP.has(word), likely: new Map(much(word)) }));
    for (let at = 1; at < words.length; at += 1) { // all reduce
      const both = stem(words[at - 1] + words[at]);
      if (both.length < 7 || !index.has(both)) continue;
      if (uses(stem(words[at - 1])) <= uses(both)) { // micro batch is nothing but microbatch
        [meant[at - 1].likely, meant[at].likely] = [new Map(), new Map([[both, 1]])];
        at += 1;
        continue;
      }
      if (!meant[at - 1].told) meant[at - 1] = { told: true, likely: new Map() };
      for (const { likely } of [meant[at - 1], meant[at]]) likely.set(both, 1);
    }
    const some = meant.filter(({ likely }) => likely.size);
    return (some.some(({ told }) => told) ? some.filter(({ told }) => told) : some).map(({ likely }) => likely);
  }

  function weighed(likely, half, key) { // what one word of a query is worth in each entry, or each page, that has it
    const points = new Map();
    for (const [word, much] of likely)
      for (const [entry, often] of index.get(word)) {
        const worth = (much * rarity(word) * often) / (often + half);
        points.set(key(entry), Math.max(points.get(key(entry)) ?? 0, worth));
      }
    return points;
  }

  function summed(all) {
    const sums = new Map();
    for (const points of all) for (const [key, worth] of points) sums.set(key, (sums.get(key) ?? 0) + worth);
    return sums;
  }

  globalThis.shardlabSearch = (query) => { // the entries that answer, the best first, with the words that were found
    const { asks, what, definition } = framed(query);
    const meant = asked(what);
    const likeliest = meant.map((likely) => [...likely].reduce((one, other) => (other[1] > one[1] ? other : one)));
    const best = likeliest.map(([word]) => word);
    const entries = summed(meant.map((likely) => weighed(likely, 1.2, (entry) => entry)));
    const pages = summed(meant.map((likely) => weighed(likely, 10, ({ page }) => page)));
    const most = Math.max(...pages.values());
    const rarities = likeliest.map(([word, much]) => much * rarity(word));
    const pairs = best.slice(1).map((word, at) => [` ${best[at]} ${word} `, Math.min(rarities[at], rarities[at + 1])]);
    const named = ({ title }) => terms(title.split(", ")[0]).every((word) => best.includes(word));
    const homes = new Set(shardlabSections.filter((each) => each.home && named(each)).map(({ home }) => home)); // by the glossary
    const whole = split(what).length > 5 ? ` ${terms(what).join(" ")} ` : null; // a message as it was printed
    const points = ([entry, worth]) => {
      const beside = (pair) => (`${entry.titleWords}|${entry.alsoWords}`.includes(pair) ? 0.6 : entry.textWords.includes(pair) ? 0.3 : 0);
      const all = pairs.reduce((sum, [pair, rare]) => sum + rare * beside(pair), worth);
      const verbatim = entry.textWords.includes(whole) || entry.titleWords.includes(whole) ? 3 : 1;
      const first = entry.titleWords.startsWith(` ${best.join(" ")} `) && !BACK.test(entry.page) ? 1.3 : 1; // of its title
      return verbatim * first * all * entry.worth * (homes.has(entry.page) ? 1.3 : 1) * (1 + (0.8 * pages.get(entry.page)) / most);
    };
    const found = [...entries].map((each) => [points(each), each[0]]).sort(([one], [other]) => other - one);
    const held = ({ titleWords, textWords }) => [...new Set(meant.flatMap((likely) => [...likely.keys()]))].filter(
      (word) => `${titleWords}${textWords}`.includes(` ${word} `),
    );
    const order = found.map(([, entry]) => entry);
    const [at, place] = [order.indexOf(definition), asks ? 0 : 1]; // a term alone may have its chapter before its definition
    if (at > place) order.splice(place, 0, ...order.splice(at, 1));
    if (meant.length) return order.map((entry) => ({ entry, words: held(entry) }));
    const signs = /[\p{L}\p{N}]/u.test(query) ? "" : query.trim(); // no word at all: the signs themselves
    return signs ? shardlabSections.filter(({ text }) => text.includes(signs)).map((entry) => ({ entry, words: [signs] })) : [];
  };

  globalThis.shardlabShare = (query, hits) => { // how much of a query one of its first hits has, a rare word counting more
    const asks = termed(split(query)).filter((word) => !STOP.has(word) && !/^\d/.test(word));
    const worth = (word) => Math.log(1 + shardlabSections.length / (0.5 + (index.get(stem(joined(word)))?.size ?? 0)));
    const sum = (words) => words.reduce((all, word) => all + worth(word), 0);
    const has = ({ titleWords, alsoWords, nameWords, textWords }) => {
      const all = titleWords + alsoWords + nameWords + textWords;
      const met = (word) => [...known(stem(word)).keys()].some((each) => all.includes(` ${each} `));
      return sum(asks.filter((word) => met(joined(word)) || parts(word).filter((part) => !STOP.has(part)).every(met)));
    };
    return asks.length ? Math.max(0, ...hits.slice(0, 5).map(({ entry }) => has(entry))) / sum(asks) : 1;
  };

  function apart(query, hits) { // whether a message of two to six words has no two that stand beside each other in a hit
    const words = termed(split(query)).filter((word) => !STOP.has(word)).map((word) => stem(joined(word)));
    const pairs = words.slice(1).map((word, at) => ` ${words[at]} ${word} `);
    const together = ({ entry }) => pairs.some((pair) => `${entry.titleWords}|${entry.alsoWords}|${entry.textWords}`.includes(pair));
    return pairs.length > 0 && split(query).length < 7 && !/\?|^(how|wh)/i.test(query) && !hits.some(together);
  }

  const made = (name, inner, more = {}) => {
    const element = Object.assign(document.createElement(name), more);
    element.append(...inner);
    return element;
  };
  const marked = (text, pattern) => text.split(pattern).map((piece, at) => (at % 2 ? made("mark", [piece]) : piece));

  function shown({ entry: { page, id, name, title, text }, words }) {
    const pattern = anyOf(words.length ? words : [title]);
    const found = [...text.matchAll(pattern)].map((each) => ({ word: each[0].toLowerCase(), at: each.index }));
    const close = (from) => new Set(found.filter(({ at }) => at >= from && at < from + AROUND).map(({ word }) => word)).size;
    const { at } = found.reduce((best, each) => (close(each.at) > close(best.at) ? each : best), found[0] ?? { at: 0 });
    const from = text.lastIndexOf(" ", Math.max(at - AROUND, 0)) + 1;
    const to = (text.indexOf(" ", at + AROUND) + 1 || text.length + 1) - 1; // excerpts begin and end with whole words
    const excerpt = `${from ? "… " : ""}${text.slice(from, to)}${to < text.length ? " …" : ""}`;
    const place = marked(title === name ? name : `${name} › ${title}`, pattern);
    const href = `${page}.html?find=${encodeURIComponent(words.join(" "))}#${id}`;
    return made("li", [made("a", place, { href }), made("p", marked(excerpt, pattern), { className: "excerpt" })]);
  }

  globalThis.shardlabShow = (query) => {
    const all = shardlabSearch(query);
    const { asks, what } = framed(query);
    const [hits, loose] = [all.slice(0, SHOWN), !asks && apart(query, all)];
    const none = "Your search did not match any documents. Try another word, or fewer of them.";
    const messages = made("a", ["the table of error messages"], { href: "book/operations.html#from-a-message-to-one-command" });
    const far = [`No page has these words${loose ? " beside each other" : ""}. The nearest places are below; see also `, messages, "."];
    const near = [`${hits.length}${hits.length < all.length ? ` of ${all.length}` : ""} places, the best first`];
    const said = made("p", !hits.length ? [none] : shardlabShare(what, hits) < (loose ? APART : LEAST) ? far : near);
    said.setAttribute("role", "status");
    document.getElementById("search-results").replaceChildren(said, made("ul", hits.map(shown), { className: "search" }));
  };

  document.addEventListener("DOMContentLoaded", () => {
    const query = new URLSearchParams(location.search).get("q") ?? "";
    const fields = [...document.querySelectorAll("input[name=q]")];
    for (const field of fields) field.value = query;
    const waiting = made("p", ["Searching …"]);
    if (query.trim()) document.getElementById("search-results").replaceChildren(waiting);
    if (query.trim()) build().then(() => shardlabShow(query));
    else fields.at(-1).focus(); // the theme's script focuses a field that is not on the screen
  });
})();
