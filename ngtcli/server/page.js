"use strict";
// Chooses documents, asks, and shows what comes. All text is set as text, never as HTML.
const $ = (id) => document.getElementById(id);
const MOST = 7500000; // bytes of texts that are sent; the server takes 8 MB in all
const FIND = 12; // documents in a list, beyond which it can be searched
const OWN = "model"; // the origin of what was not drafted
const LONGEST_WORD = 80; // letters, beyond which a word is not waited for; as in the terminal
const WIDE = /[\p{sc=Han}\p{sc=Hira}\p{sc=Kana}]/u; // written without spaces: each is a word
const HUE = (document) => Math.round(205 + document * 137.5) % 360; // as in the page of an answer
let given = []; // texts of the reader's own: {name, text, size}
let running = null; // what stops the answer that is arriving
let answer = null; // its pieces, as [text, origin], and its node that grows

function make(name, ...inner) {
  const made = document.createElement(name);
  made.append(...inner);
  return made;
}

function fail(text) {
  $("failure").textContent = text;
  $("failure").hidden = !text;
}

// --- documents ---

async function call(path, options = {}) {
  const headers = { ...options.headers };
  if ($("key").value) headers.authorization = `Bearer ${$("key").value}`;
  const response = await fetch(path, { ...options, headers });
  if (response.ok) return response;
  if (response.status === 401) $("key-row").hidden = false;
  let words = `The server answered ${response.status}.`;
  try { words = (await response.json()).error.message; } catch { /* no words of its own */ }
  throw new Error(response.status === 401 ? "Give the API key of this server." : words);
}

async function list() {
  try {
    const found = await (await call("documents")).json();
    $("model").textContent = `, by ${found.model}`;
    $("served").hidden = found.documents === null;
    $("own").open = found.documents === null;
    const boxes = (found.documents || []).map(({ name, size }) => {
      const box = make("input");
      Object.assign(box, { type: "checkbox", checked: true, value: name });
      const about = make("small", ` ${size.toLocaleString("en")} characters`);
      about.className = "soft";
      return make("li", make("label", box, " ", make("bdi", name), about));
    });
    $("names").replaceChildren(...boxes);
    $("filter-label").hidden = boxes.length <= FIND;
    count();
    fail("");
  } catch (error) {
    fail(error.message);
  }
}

const boxes = () => [...$("names").querySelectorAll("input")];

function count() {
  const chosen = boxes().filter((box) => box.checked).length, all = boxes().length;
  $("count").textContent = `${chosen} of ${all} chosen`;
  $("chosen").textContent = all ? `: ${chosen} of ${all} chosen` : "";
  $("all").checked = chosen === all;
  $("all").indeterminate = chosen > 0 && chosen < all;
}

function choose(event) {
  if (event.target === $("all"))
    for (const box of boxes()) if (!box.closest("li").hidden) box.checked = $("all").checked;
  count();
}

function find() {
  const words = $("filter").value.toLowerCase();
  for (const box of boxes()) box.closest("li").hidden = !box.value.toLowerCase().includes(words);
}

function add(name, text) {
  const size = new Blob([text]).size;
  if (given.reduce((sum, one) => sum + one.size, size) > MOST)
    return fail(`${name}: more text than can be sent; serve its folder with ngt serve -d FOLDER.`);
  const names = given.map((one) => one.name);
  let own = name;
  for (let number = 2; names.includes(own); number++) own = `${name} (${number})`;
  given.push({ name: own, text, size });
  showGiven();
}

function showGiven() {
  $("own").open = true;
  $("own-count").textContent = given.length ? `${given.length} added` : "";
  $("given").replaceChildren(...given.map((one) => {
    const remove = make("button", "Remove");
    remove.type = "button";
    remove.setAttribute("aria-label", `Remove ${one.name}`);
    remove.addEventListener("click", () => {
      given = given.filter((other) => other !== one);
      showGiven();
      $("add").focus();
    });
    return make("li", make("bdi", one.name), remove);
  }));
}

async function take(files) {
  fail("");
  for (const file of files) {
    try {
      if (file.size > MOST) { add(file.name, "x".repeat(MOST + 1)); continue; }
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      if (text.includes("\0")) throw new TypeError();
      add(file.name, text);
    } catch {
      fail(`${file.name}: not a text in UTF-8; serve its folder with ngt serve -d FOLDER.`);
    }
  }
}

function drop(event) {
  event.preventDefault();
  document.body.classList.remove("dropping");
  const { files } = event.dataTransfer, text = event.dataTransfer.getData("text/plain");
  if (files.length) take(files);
  else if (text.trim()) add("Dropped text", text);
}

function paste() {
  if (!$("pasted").value.trim()) return;
  add("Pasted text", $("pasted").value);
  $("pasted").value = "";
  $("pasted").focus();
}

// --- the answer as it arrives ---

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "", done = false, value; !done;) {
    ({ done, value } = await reader.read());
    const lines = (rest + (value || "")).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) yield JSON.parse(line);
  }
}

// Letters with one origin for each word, that of most of its letters: tokens end within words, and
// a line that begins within a word looks like a mistake. A word waits until it is complete.
class WholeWords {
  lastOrigin = ""; // of the word before the spaces
  gap = []; // spaces before the word
  word = [];

  feed(text, origin) {
    const letters = [];
    for (const letter of text) {
      if (/\s/.test(letter)) {
        letters.push(...this.end());
        this.gap.push([letter, origin]);
        continue;
      }
      if (this.isComplete(letter)) letters.push(...this.end());
      this.word.push([letter, origin]);
    }
    return letters;
  }

  isComplete(next) {
    if (!this.word.length) return false;
    const last = this.word.at(-1)[0];
    const breaks = WIDE.test(next) || (WIDE.test(last) && /[\p{L}\p{N}]/u.test(next));
    return breaks || this.word.length >= LONGEST_WORD;
  }

  end() {
    const counts = new Map();
    for (const [, origin] of this.word) counts.set(origin, (counts.get(origin) || 0) + 1);
    const [origin] = [...counts].reduce((a, b) => (b[1] > a[1] ? b : a), ["", 0]);
    const isWithin = origin === this.lastOrigin;
    const letters = this.gap.map(([space, own]) => [space, isWithin && own === origin ? own : ""]);
    letters.push(...this.word.map(([letter]) => [letter, origin]));
    if (this.word.length) this.lastOrigin = origin;
    this.gap = [];
    this.word = [];
    return letters;
  }
}

function node(text, origin) {
  if (!origin) return document.createTextNode(text);
  const drafted = make("u", text);
  drafted.dataset.origin = origin;
  return drafted;
}

function step(tokens) {
  for (const { text, thought, ...token } of tokens) {
    const origin = token.origin === OWN ? "" : token.origin;
    answer.tokens += 1;
    if (thought) {
      $("thought").hidden = false;
      $("thought-text").append(thought);
    }
    show(answer.words.feed(text, origin));
  }
  legend();
  $("progress").textContent = `Answering: ${answer.tokens.toLocaleString("en")} tokens`;
}

function show(letters) {
  for (const [letter, origin] of letters) {
    const last = answer.pieces.at(-1);
    if (last && last[1] === origin) {
      last[0] += letter;
      (origin ? answer.last.firstChild : answer.last).appendData(letter);
    } else {
      answer.pieces.push([letter, origin]);
      answer.last = node(letter, origin);
      $("answer").append(answer.last);
    }
  }
}

function legend() {
  const origins = [...new Set(answer.pieces.map(([, origin]) => origin).filter(Boolean))];
  if (origins.length === $("legend").childElementCount) return;
  const words = origins.flatMap((origin) => [node(origin, origin), " · "]);
  $("legend").replaceChildren("Drafted from: ", ...words, "the model's own");
  $("legend").hidden = !origins.length;
}

// The answer again, its stretches that stand in documents as links to the list below it.
function link(sources) {
  const letters = answer.pieces.flatMap(([text, origin]) => Array.from(text, (c) => [c, origin]));
  const between = (start, end) => {
    const nodes = [];
    for (let at = start; at < end;) {
      const origin = letters[at][1];
      let to = at;
      while (to < end && letters[to][1] === origin) to++;
      nodes.push(node(letters.slice(at, to).map(([c]) => c).join(""), origin));
      at = to;
    }
    return nodes;
  };
  const shown = [];
  let at = 0;
  for (const source of sources) {
    const mark = make("sup", `[${source.number}]`);
    const stretch = make("a", ...between(source.start, source.end), mark);
    stretch.className = "stretch";
    stretch.href = `#place-${source.number}`;
    stretch.id = `stretch-${source.start}`;
    stretch.style.setProperty("--hue", HUE(source.document));
    shown.push(...between(at, source.start), stretch);
    at = source.end;
  }
  $("answer").replaceChildren(...shown, ...between(at, letters.length));
  $("sources").hidden = !sources.length;
  const first = new Map([...sources].reverse().map((source) => [source.number, source]));
  $("places").replaceChildren(...[...first.values()].sort((a, b) => a.number - b.number).map(place));
}

function place(source) {
  const back = make("a", make("bdi", source.name));
  back.href = `#stretch-${source.start}`;
  back.setAttribute("aria-label", `${source.name}, back to the answer`);
  const item = make("li", back, make("q", source.before, make("b", source.quote), source.after));
  item.id = `place-${source.number}`;
  item.value = source.number;
  item.tabIndex = -1;
  item.style.setProperty("--hue", HUE(source.document));
  return item;
}

const ENDINGS = {
  length: "The answer is cut off: it has as many tokens as it may.",
  context: "The answer is cut off: the context is full.",
  repetition: "The answer is cut off: it repeats itself.",
  interrupted: "The answer was interrupted.",
};
const SHOWN = {
  Stepped: ({ step: { tokens } }) => step(tokens),
  Reading: ({ read, total }) => { $("progress").textContent = `Reading ${read} of ${total} tokens`; },
  Prompted: ({ tokens }) => { $("progress").textContent = `Reading ${tokens} tokens`; },
  Part: ({ words }) => { answer.part = words; },
  Message({ kind, text }) {
    $("progress").textContent = answer.part ? `${answer.part}: ${text}` : text;
    if (kind === "warn") answer.facts.push(text);
  },
  Ended({ finish_reason: reason, facts, sources }) {
    show(answer.words.end());
    link(sources.spans.map(({ span, ...source }) => ({ ...span, ...source })));
    answer.facts.push(...facts, ...(ENDINGS[reason] ? [ENDINGS[reason]] : []));
    answer.state = "The answer is complete.";
  },
  MorePassages({ passages }) { answer.more = passages; },
  Failed({ message }) { throw new Error(message); },
};

async function ask(task, passages = 0) {
  if (running) return;
  const names = $("served").hidden ? [] : boxes().filter((b) => b.checked).map((b) => b.value);
  fail("");
  if (task === "ask" && !$("question").value.trim()) {
    $("question").focus();
    return fail("Ask something.");
  }
  if (!names.length && !given.length) return fail("Choose a document, or add a text.");
  running = new AbortController();
  answer = { pieces: [], words: new WholeWords(), last: null, tokens: 0, part: "", facts: [],
    state: "", more: 0 };
  for (const id of ["answer", "facts", "thought-text", "places", "legend"]) $(id).replaceChildren();
  for (const id of ["thought", "sources", "legend"]) $(id).hidden = true;
  begin(true);
  try {
    const documents = given.map(({ name, text }) => ({ name, text }));
    const question = $("question").value;
    const body = JSON.stringify({ task, question, names, documents, passages });
    const headers = { "content-type": "application/json" };
    const sent = { method: "POST", headers, body, signal: running.signal };
    for await (const [name, data] of events(await call("answer", sent))) SHOWN[name]?.(data);
    if (!answer.state) throw new Error("The server ended before the answer did.");
  } catch (error) {
    if (running.signal.aborted) answer.state = "Stopped.";
    else fail(error.message);
  }
  show(answer.words.end()); // of an answer that was stopped or failed
  running = null;
  begin(false);
}

// Before an answer begins, and once it has ended: what can be pressed, where the keys go.
function begin(isRunning) {
  const focused = document.activeElement;
  for (const id of ["ask", "summarize"]) $(id).disabled = isRunning;
  $("stop").disabled = !isRunning;
  if (isRunning && (focused === $("ask") || focused === $("summarize"))) $("stop").focus();
  if (!isRunning && focused === $("stop")) $("question").focus();
  $("answer").setAttribute("aria-busy", String(isRunning));
  if (isRunning && $("progress").getBoundingClientRect().bottom + 160 > innerHeight)
    $("form").scrollIntoView({ block: "start" }); // on a phone: what arrives stands below
  $("progress").textContent = isRunning ? "Waiting for the model" : "";
  const facts = isRunning ? [] : [...answer.facts];
  if (answer.state === "Stopped.") facts.push(answer.state);
  $("facts").textContent = facts.join(" · ");
  $("more").hidden = isRunning || !answer.more;
  $("more").textContent = `Read ${answer.more} passages`;
  $("state").textContent = isRunning ? "Answering" : answer.state;
}

function key(event) {
  if (event.key === "Escape") {
    const item = document.activeElement.closest(".places li");
    if (running) running.abort();
    else if (item) document.querySelector(item.querySelector("a").hash).focus();
  } else if (event.key === "Enter" && event.target === $("question") && !event.shiftKey
             && !event.isComposing) {
    event.preventDefault();
    ask("ask");
  }
}

$("served").addEventListener("change", choose);
$("filter").addEventListener("input", find);
$("files").addEventListener("change", () => { take([...$("files").files]); $("files").value = ""; });
$("add").addEventListener("click", paste);
$("key").addEventListener("change", list);
$("form").addEventListener("submit", (event) => { event.preventDefault(); ask("ask"); });
$("summarize").addEventListener("click", () => ask("summarize"));
$("more").addEventListener("click", () => ask("ask", answer.more));
$("stop").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", key);
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("dropping");
});
document.addEventListener("dragleave", () => document.body.classList.remove("dropping"));
document.addEventListener("drop", drop);
list();
