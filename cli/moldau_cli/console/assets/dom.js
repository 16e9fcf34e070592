// Elements, updates in place, formatting, and requests. Content of records only ever becomes text nodes.

const SVG = "http://www.w3.org/2000/svg";

function build(element, attributes, children) {
  element.handlers = {};
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) { element.handlers[name] = value; element[name] = value; }
    else if (name === "value") { element.value = value; if (attributes.type !== "password") element.setAttribute("value", value); }
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => child instanceof Node ? child : String(child)));
  return element;
}

export const h = (name, attributes, ...children) => build(document.createElement(name), attributes, children);
export const s = (name, attributes, ...children) => build(document.createElementNS(SVG, name), attributes, children);

// Makes `old` look like `fresh` and keeps elements that are alike, with focus, selection and scroll position.
export function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || old.dataset?.key !== fresh.dataset?.key) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.dataset?.keep !== undefined) return;
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value && !(name === "value" && old === document.activeElement)) old.setAttribute(name, value);
  }
  for (const name of Object.keys(old.handlers ?? {})) if (!(name in (fresh.handlers ?? {}))) old[name] = null;
  for (const [name, value] of Object.entries(fresh.handlers ?? {})) old[name] = value;
  old.handlers = fresh.handlers;
  const before = [...old.childNodes], after = [...fresh.childNodes];
  after.forEach((child, index) => before[index] ? morph(before[index], child) : old.append(child));
  before.slice(after.length).forEach((child) => child.remove());
}

// ---- formatting

const whole = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
export const number = (value) => value === null || value === undefined ? "–" : whole.format(value);
export const short = (value) => value === null || value === undefined ? "–" : Math.abs(value) < 10000 ? whole.format(Math.round(value * 10) / 10) : compact.format(value);
export function bytes(value) {
  if (value === null || value === undefined || value < 0) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit === 0 ? Math.round(value) : value.toFixed(value < 10 ? 1 : 0)} ${units[unit]}`;
}
export const rate = (value) => value === null || value === undefined ? "–" : `${short(value)}/s`;
export const byteRate = (value) => value === null || value === undefined ? "–" : `${bytes(value)}/s`;
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 59950) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${(ms / 3600000).toFixed(1)} h`;
}
// Time in the zone of the browser, with its distance from UTC: an hour that a clock change repeats has two of them.
export function when(ms) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  const date = new Date(ms), pad = (value, size = 2) => String(value).padStart(size, "0");
  if (Number.isNaN(date.getTime())) return String(ms);
  const east = -date.getTimezoneOffset(), minutes = Math.abs(east);
  const zone = `${east < 0 ? "-" : "+"}${pad(Math.floor(minutes / 60))}:${pad(minutes % 60)}`;
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}.${pad(date.getMilliseconds(), 3)} ${zone}`;
}
export const link = (page, parameters = {}) => {
  const query = new URLSearchParams(parameters).toString();
  return `#/${page}${query ? `?${query}` : ""}`;
};
// What is shown: the address that was drawn last. A search or filter becomes a part of it, so that a reload keeps it.
export const shown = { address: "" };
export function remember(page, parameters) {
  history.replaceState(null, "", link(page, Object.fromEntries(Object.entries(parameters).filter(([, value]) => value !== ""))));
  shown.address = location.hash;
}

// ---- parts that several pages use

export const badge = (text, kind = "") => h("span", { class: `badge ${kind}` }, text);
export const notice = (text, kind = "") => h("p", { class: `notice ${kind}`, role: kind === "bad" ? "alert" : null }, text);
export const notes = (texts) => (texts ?? []).map((text) => notice(text, "warn"));
export const explainAs = (title, ...content) => h("details", { class: "explain" }, h("summary", {}, title), h("p", {}, ...content));
export const explain = (...content) => explainAs("What does this page show?", ...content);
export const fact = (label, value, detail = "") => h("div", { class: "fact" }, h("span", { class: "label" }, label), h("span", { class: "value" }, value), h("span", { class: "detail" }, detail || "\u00a0"));

// columns: [title, row => content, class]; the first column is the row's header.
export function table(caption, columns, rows, empty) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  return h("div", { class: "table", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {},
      h("thead", {}, h("tr", {}, columns.map(([title, , kind]) => h("th", { scope: "col", class: kind }, title)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, columns.map(([, content, kind], index) =>
        h(index ? "td" : "th", { class: kind, scope: index ? null : "row" }, content(row))))))));
}
export const more = (document) => document.total > document.rows.length
  ? notice(`The first ${number(document.rows.length)} of ${number(document.total)} are shown. Use the filter to find others.`, "warn") : null;

// ---- requests

const SILENT = "The console does not answer. Is `moldau console` still running?";

export const session = {};

export async function api(path, parameters = {}, options = {}) {
  const query = new URLSearchParams(parameters).toString();
  const headers = { ...(session.csrf ? { "x-moldau-csrf": session.csrf } : {}), ...(options.body ? { "content-type": "application/json" } : {}) };
  let answer, document;
  try {
    answer = await fetch(`api/${path}${query ? `?${query}` : ""}`, { ...options, headers, credentials: "same-origin" });
    document = await answer.json();
  } catch (error) {
    throw new Error(error.name === "AbortError" ? "stopped" : SILENT);
  }
  if (answer.status === 401 && path !== "session") window.dispatchEvent(new CustomEvent("signed-out", { detail: document.error }));
  if (!answer.ok) throw new Error(document.error ?? `The console answered ${answer.status}.`);
  return document;
}

// A window without focus rests as long as a stream waits between two answers (`INTERVALS_S`, `REST`, `QUESTION_S`).
const REST_MS = 2000, WATCHING_MS = 250, REST = 4, REST_MAX_MS = REST * 30000;

// Calls `show(document)` at each new document and `fail(text, refused)` at each error; `refused` means that the cluster answers, and that
// the question has no answer (no such topic, a missing right). Returns a function that ends it.
// A browser has six connections for all pages, and none of them would get another answer. So only the window with the focus keeps its
// stream; another one closes its own with each answer and asks again after a rest. A hidden page has no connection, unless it must go on
// watching (`always`): timers of hidden pages are rare, so one of all hidden pages of the console (a lock says which) keeps its stream.
export function live(path, parameters, show, fail, always = false) {
  const query = new URLSearchParams(parameters).toString();
  const light = document.getElementById("live");
  const say = (state) => { light.dataset.state = state; if (light.textContent !== state) light.textContent = state; };
  let source = null, again = 0, silent = 0, restMs = 0; // a rest is known once the stream has answered
  const heard = () => { clearTimeout(silent); silent = 0; };
  const close = () => { clearTimeout(again); again = restMs = 0; heard(); source?.close(); source = null; };
  const rests = (event) => (event?.type === "blur" || !document.hasFocus()) && !(always && document.hidden);
  const rest = () => {
    const ms = restMs;
    close();
    again = setTimeout(() => { again = 0; open(); }, ms);
  };
  const open = () => {
    const own = source = new EventSource(`api/live/${path}${query ? `?${query}` : ""}`), began = performance.now();
    const answered = () => {
      restMs ||= Math.min(Math.max(always ? WATCHING_MS : REST_MS, REST * (performance.now() - began)), REST_MAX_MS);
      if (rests()) rest();
    };
    own.addEventListener("data", (event) => { say("live"); answered(); show(JSON.parse(event.data)); });
    own.addEventListener("trouble", (event) => {
      const { error, status } = JSON.parse(event.data), refused = status < 500;
      if (status === 401) { close(); window.dispatchEvent(new CustomEvent("signed-out", { detail: error })); return; }
      say(refused ? "live" : "waiting"); answered(); fail(error, refused);
    });
    own.addEventListener("late", () => say("waiting")); // the answer follows
    own.onopen = () => { heard(); if (light.dataset.state !== "waiting") say("live"); };
    own.onerror = async () => {
      say("offline");
      if (own.readyState !== EventSource.CLOSED) { // the browser connects again by itself, as often as it takes
        silent ||= setTimeout(() => fail(SILENT, false), 3000);
        return;
      }
      let problem = "";
      try {
        const found = await api("session");
        // A console that was started again opens another session; the former one's token would be refused.
        if (found.csrf !== session.csrf) { window.dispatchEvent(new Event("signed-out")); return; }
      } catch (error) { problem = error.message; }
      if (source !== own) return;
      if (problem) fail(problem, false);
      again = setTimeout(() => window.dispatchEvent(new Event("hashchange")), 3000);
    };
  };
  const begin = () => { clearTimeout(again); again = 0; say("connecting"); open(); };
  let watch = null; // the wait for the lock, or its end once it is held
  const locks = always ? navigator.locks : undefined;
  const hide = () => {
    if (watch) return;
    close();
    const { signal } = watch = new AbortController();
    locks?.request("moldau-watching", { signal }, () => {
      if (signal.aborted) return undefined;
      begin();
      return new Promise((free) => signal.addEventListener("abort", free));
    }).catch(() => {}); // the page was shown before its turn came
  };
  const seen = () => { watch?.abort(); watch = null; };
  const turn = (event) => {
    if (document.hidden && (!always || locks)) { hide(); return; }
    seen();
    if (source) { if (rests(event) && restMs) rest(); }
    else if (!rests(event) || !again) begin();
  };
  const places = [[document, "visibilitychange"], [window, "focus"], [window, "blur"]];
  for (const [place, event] of places) place.addEventListener(event, turn);
  turn();
  return () => { for (const [place, event] of places) place.removeEventListener(event, turn); seen(); close(); };
}
