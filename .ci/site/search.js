// Finds the sections of the site that answer a question, best first. It needs no server: searchindex.js has the texts.
const COMMON = new Set(
  `a about after all also am an and any are as at be because before between by can could did do does else every
  find for from get gets give go goes going good had has have hookcore how i if in into is it its just let like
  make me mean means more my need no not of often on only or our out over own please see should show so some
  than that the their them then there these they this to up us use used using want was way we were what when
  where which while who why will with without work works would you your`.split(/\s+/),
);
// Words of people who don't know those of the pages yet. The pages' own words count half.
const ALSO = {
  account: ["token"],
  auth: ["token", "security"],
  authentication: ["token", "security"],
  colab: ["notebook"],
  ddp: ["rank", "distributed"],
  crash: ["ended"],
  crashes: ["crash", "dead"],
  decrease: ["fall"],
  different: ["differ"],
  difference: ["differ"],
  disk: ["saved"],
  diverges: ["incident"],
  down: ["fall"],
  distributed: ["rank"],
  fast: ["cost"],
  freeze: ["frozen"],
  fsdp: ["rank"],
  inf: ["infinite", "nan"],
  jupyter: ["notebook"],
  login: ["token"],
  lr: ["rate"],
  multi: ["rank"],
  overhead: ["cost"],
  password: ["token", "login"],
  plot: ["chart"],
  price: ["cost"],
  protect: ["token", "security"],
  ram: ["memory"],
  remote: ["another", "send"],
  send: ["server"],
  slow: ["cost", "time"],
  slower: ["cost"],
  tensorboard: ["bridge"],
  uninstall: ["remove"],
  wandb: ["bridge"],
  zero: ["dead"],
};
// Pages for those who build hookcore, and lists of names, come after the others.
const LATER = [
  [/^(architecture|benchmarks|changelog|changes-|contributing|reporting)/, 0.4],
  [/^(reference\/|http-api)/, 0.7],
];
const MOST = 20;
const LENGTH = 220; // of an excerpt

/** Return the words of a text, in the form in which they are compared. */
function words(text) {
  const found = text.toLowerCase().match(/[a-z0-9_]+/g) ?? [];
  return found.flatMap((word) => (word.includes("_") ? [word, ...word.split("_")] : [word])).map(stem);
}

function stem(word) {
  if (word.length < 4 || word.includes("_")) return word;
  return word
    .replace(/ies$/, "y")
    .replace(/([^su])s$/, "$1")
    .replace(/(?<=...)(ing|ed)$/, "")
    .replace(/([bdgmnprt])\1$/, "$1")
    .replace(/(?<=...)e$/, "");
}

/** Return the words of a heading that say what it is about. */
function headed(text) {
  const plain = text.match(/[A-Za-z0-9_]+/g) ?? [];
  return new Set(words(plain.filter((word) => !COMMON.has(word.toLowerCase())).join(" ")));
}

/** Return how often each word is in a text. */
function counts(list, weight, into = new Map()) {
  for (const word of list) into.set(word, (into.get(word) ?? 0) + weight);
  return into;
}

const sections = window.hookcoreSections.map(([page, title, anchor, heading, text]) => {
  const body = words(text);
  const found = counts(words(title), 2, counts(words(heading), 4, counts(body, 1)));
  return { page, title, anchor, heading, text, found, headed: headed(`${title} ${heading}`), length: body.length };
});
const usual = sections.reduce((sum, each) => sum + each.length, 0) / sections.length;
const inSections = counts(
  sections.flatMap((each) => [...each.found.keys()]),
  1,
);

/** Return how much a word says: more if few sections have it. */
const worth = (word) => Math.log(1 + (sections.length + 0.5) / ((inSections.get(word) ?? 0) + 0.5));

/** Return the words of a question, each with the others that count for it. */
function asked(question) {
  const plain = question.toLowerCase().match(/[a-z0-9_]+/g) ?? [];
  const telling = plain.filter((word) => !COMMON.has(word));
  return [...new Set(telling.length ? telling : plain)].map((word) => ({
    forms: [
      [stem(word), worth(stem(word))],
      ...(ALSO[word] ?? []).map((other) => [stem(other), worth(stem(other)) / 2]),
    ],
    worth: worth(stem(word)),
  }));
}

/** Return how well a section answers: how much of the question it has, and how often. */
function score(section, terms) {
  const part = 0.4 + 0.6 * (section.length / usual);
  const sums = { all: 0, text: 0, heading: 0, often: 0 };
  for (const { forms, worth: whole } of terms) {
    const often = ([form, points]) =>
      (points * (section.found.get(form) ?? 0)) / ((section.found.get(form) ?? 0) + part);
    const within = (list) => Math.max(...forms.map(([form, points]) => (list.has(form) ? points : 0)));
    sums.all += whole;
    sums.often += Math.max(...forms.map(often));
    sums.text += within(section.found);
    sums.heading += within(section.headed);
  }
  const asked = new Set(terms.flatMap(({ forms }) => forms.map(([form]) => form)));
  const shared = [...section.headed].filter((word) => asked.has(word)).length / (section.headed.size || 1);
  const later = LATER.find(([pages]) => pages.test(section.page))?.[1] ?? 1;
  return sums.often * (sums.text / sums.all) * (1 + (sums.heading / sums.all) * (1 + 2 * shared)) * later;
}

/** Return the best section of each page, best first. */
function search(question) {
  const terms = asked(question);
  const best = new Map();
  for (const section of sections) {
    const points = score(section, terms);
    if (points > (best.get(section.page)?.points ?? 0)) best.set(section.page, { section, points });
  }
  const forms = new Set(terms.flatMap((term) => term.forms.map(([form]) => form)));
  return { forms, hits: [...best.values()].sort((one, other) => other.points - one.points).slice(0, MOST) };
}

/** Return the part of a text that has most of the words, with these marked. */
function excerpt(text, forms) {
  const every = [...text.matchAll(/[A-Za-z0-9_]+/g)];
  const places = every.filter((found) => words(found[0]).some((word) => forms.has(word)));
  const within = (start) => {
    const near = places.filter((each) => each.index >= start && each.index < start + LENGTH);
    return new Set(near.map((each) => stem(each[0].toLowerCase()))).size;
  };
  const start = places.reduce((best, each) => (within(each.index) > within(best) ? each.index : best), 0);
  const from = start < 80 ? 0 : text.lastIndexOf(" ", start - 40) + 1;
  const to = from + LENGTH < text.length ? text.indexOf(" ", from + LENGTH) : text.length;
  const line = document.createElement("p");
  let at = from;
  line.append(from ? "… " : "");
  for (const each of places.filter((found) => found.index >= from && found.index + found[0].length <= to)) {
    line.append(text.slice(at, each.index), Object.assign(document.createElement("mark"), { textContent: each[0] }));
    at = each.index + each[0].length;
  }
  line.append(text.slice(at, to < 0 ? undefined : to), to < text.length && to >= 0 ? " …" : "");
  return line;
}

/** Show what was found. */
function show(question) {
  const place = document.getElementById("search-results");
  const { forms, hits } = search(question);
  const title = Object.assign(document.createElement("h1"), { textContent: "Search" });
  const said = hits.length ? `Pages about “${question}”, best first` : `No page has a word of “${question}”`;
  const summary = Object.assign(document.createElement("p"), { className: "search-summary", textContent: said });
  const list = Object.assign(document.createElement("ol"), { className: "search" });
  for (const { section } of hits) {
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = `${section.page}.html${section.anchor ? `#${section.anchor}` : ""}`;
    link.textContent = section.heading === section.title ? section.title : `${section.title} › ${section.heading}`;
    item.append(link, excerpt(section.text, forms));
    list.append(item);
  }
  place.replaceChildren(title, summary, list);
}

const question = new URLSearchParams(location.search).get("q")?.trim();
if (question) {
  for (const box of document.querySelectorAll("input[name=q]")) box.value = question;
  show(question);
}
