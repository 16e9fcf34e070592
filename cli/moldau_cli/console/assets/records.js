// The message browser, the produce form, and configurations.
import { api, badge, bytes, explain, h, link, morph, notice, number, remember, session, table, when } from "./dom.js";

const field = (label, control, kind = "") => h("label", { class: `field ${kind}` }, h("span", {}, label), control);
const choice = (name, options, chosen) => h("select", { name }, options.map(([value, text]) => {
  const option = h("option", { value }, text);
  if (value === chosen) option.selected = true;
  return option;
}));

const VIEWS = [["best", "Best"], ["text", "Text"], ["json", "JSON"], ["avro", "Avro"], ["hex", "Hex"]];

function content(part, view) {
  if (part === null) return h("span", { class: "quiet" }, "null");
  const chosen = view === "best" || part[view] === null || part[view] === undefined ? part.best : view;
  return h("pre", { class: chosen }, part[chosen] === "" ? " " : part[chosen], part.cut ? `\n… cut, ${bytes(part.bytes)} in all` : "");
}

function line(part, view) {
  if (part === null) return h("span", { class: "quiet" }, "null");
  const chosen = view === "best" ? (part.best === "json" ? "text" : part.best) : part[view] === null || part[view] === undefined ? part.best : view;
  const text = String(part[chosen]).replace(/\s+/g, " ").slice(0, 240);
  return h("code", {}, chosen === "hex" ? text.replace(/^00000000 /, "") : text || "(empty)");
}

export function messages(root, parameters) {
  const state = { partition: "", view: "best", open: new Set(), found: null, error: "", busy: false, whole: new Map() };
  const result = h("div", { class: "results", "aria-live": "polite" });
  let newest = 0; // number of the last search: an answer to an earlier one, or after the page was left, is not shown
  const topic = parameters.get("topic") ?? "";
  const form = h("form", { class: "card search", onsubmit: (event) => { event.preventDefault(); search(); } },
    field("Topic", h("input", { name: "topic", required: true, value: topic, autocomplete: "off", spellcheck: "false" }), "grow"),
    field("Partition", h("input", { name: "partition", inputmode: "numeric", pattern: "[0-9]*", placeholder: "all", value: parameters.get("partition") ?? "" }), "small"),
    field("From", choice("origin", [["tail", "the newest"], ["start", "the beginning"], ["offset", "an offset"], ["before", "before an offset"], ["time", "a time"]], parameters.get("origin") ?? "tail")),
    field("Offset", h("input", { name: "offset", inputmode: "numeric", pattern: "[0-9]*", value: parameters.get("value") ?? "0" }), "small only-offset"),
    field("Time", h("input", { name: "time", type: "datetime-local", step: "1", value: parameters.get("time") ?? "" }), "only-time"),
    field("Records", choice("limit", [["20", "20"], ["50", "50"], ["100", "100"], ["200", "200"]], parameters.get("limit") ?? "50"), "small"),
    field("Key contains", h("input", { name: "key", autocomplete: "off", value: parameters.get("key") ?? "" })),
    field("Value contains", h("input", { name: "contains", autocomplete: "off", value: parameters.get("contains") ?? "" })),
    field("Transactions", choice("committed", [["", "all records"], ["1", "committed only"]], parameters.get("committed") ?? "")),
    h("button", { class: "primary", type: "submit" }, "Show records"));
  const adapt = () => { form.dataset.origin = form.elements.origin.value; };
  form.elements.origin.onchange = adapt;
  adapt();

  // From the records of one partition to those before or behind them.
  async function turn(records, way) {
    const of = form.elements;
    of.origin.value = way === "older" ? "before" : "offset";
    of.offset.value = String(way === "older" ? records[0].offset : records[records.length - 1].offset + 1);
    adapt();
    if (await search() && way === "older" && !state.error && !state.found.records.length) { of.origin.value = "start"; adapt(); search(); } // these were the first
  }

  function pager(found) {
    if (state.partition === "" || !found.records.length) return null;
    const bounds = found.partitions[String(state.partition)], records = found.records;
    if (!bounds) return null;
    return h("span", { class: "toggle", role: "group", "aria-label": "Records before and behind these" },
      h("button", { type: "button", disabled: records[0].offset <= bounds[0] || state.busy, onclick: () => turn(records, "older") }, "Older"),
      h("button", { type: "button", disabled: records[records.length - 1].offset >= bounds[1] - 1 || state.busy, onclick: () => turn(records, "newer") }, "Newer"));
  }

  async function search() {
    const of = form.elements, own = newest += 1;
    if (of.origin.value === "time" && !of.time.value) { Object.assign(state, { busy: false, error: "Choose the time to begin at." }); draw(); return false; }
    const asked = { topic: of.topic.value.trim(), partition: of.partition.value, origin: of.origin.value, limit: of.limit.value, key: of.key.value, contains: of.contains.value, committed: of.committed.value };
    if (asked.origin === "offset" || asked.origin === "before") asked.value = of.offset.value || "0";
    remember("messages", { ...asked, time: asked.origin === "time" ? of.time.value : "" });
    if (asked.origin === "time") asked.value = String(Date.parse(of.time.value) || 0);
    Object.assign(state, { busy: true, error: "" });
    draw();
    let found = null, problem = "";
    try { found = await api("messages", asked); } catch (error) { problem = error.message; }
    if (own !== newest) return false;
    if (found) { state.found = found; state.open.clear(); state.whole.clear(); state.topic = asked.topic; state.partition = asked.partition; }
    Object.assign(state, { busy: false, error: problem });
    draw();
    return true;
  }

  async function toggle(record) {
    const name = `${record.partition}-${record.offset}`, found = state.found;
    if (state.open.delete(name)) { draw(); return; }
    state.open.add(name);
    draw();
    if ((record.value?.cut || record.key?.cut) && !state.whole.has(name)) {
      let whole = null, problem = "";
      try { whole = await api("message", { topic: state.topic, partition: record.partition, offset: record.offset }); } catch (error) { problem = error.message; }
      if (state.found !== found) return;
      if (whole) state.whole.set(name, whole); else state.error = problem;
      draw();
    }
  }

  function row(record) {
    const name = `${record.partition}-${record.offset}`, isOpen = state.open.has(name), whole = state.whole.get(name) ?? record;
    return [
      h("tr", { class: "record", "data-key": name },
        h("td", {}, h("button", { class: "fold", type: "button", "aria-expanded": String(isOpen), "aria-label": `Record ${record.offset} of partition ${record.partition}`, onclick: () => toggle(record) }, isOpen ? "▾" : "▸")),
        h("td", { class: "num" }, record.partition), h("td", { class: "num" }, number(record.offset)), h("td", { class: "time wide" }, when(record.timestamp)),
        h("td", { class: "line" }, line(record.key, state.view)), h("td", { class: "line grow" }, line(record.value, state.view))),
      isOpen ? h("tr", { class: "opened", "data-key": `${name}-open` }, h("td", { colspan: 6 },
        h("dl", {}, h("dt", {}, "Time"), h("dd", {}, when(record.timestamp)),
          h("dt", {}, "Key ", h("span", { class: "quiet" }, record.key ? bytes(record.key.bytes) : "")), h("dd", {}, content(whole.key, state.view)),
          h("dt", {}, "Value ", h("span", { class: "quiet" }, record.value ? bytes(record.value.bytes) : "tombstone")), h("dd", {}, content(whole.value, state.view)),
          record.headers.length ? [h("dt", {}, "Headers"), h("dd", {}, record.headers.map((each) => h("div", {}, h("code", {}, each.name), " = ", each.value === null ? h("span", { class: "quiet" }, "null") : h("code", {}, each.value))))] : null))) : null,
    ];
  }

  function draw() {
    const found = state.found, views = VIEWS.filter(([name]) => name !== "avro" || session.avro);
    const fresh = h("div", { class: "results", "aria-live": "polite", "aria-busy": String(state.busy) },
      state.error ? notice(state.error, "bad") : null,
      state.busy && !found ? h("p", { class: "quiet" }, "Searching.") : null,
      found ? [
        h("div", { class: "bar" },
          h("span", { class: "quiet" }, `${number(found.records.length)} ${found.records.length === 1 ? "record" : "records"} shown, ${number(found.scanned)} read${state.busy ? ", searching" : ""}`),
          pager(found),
          h("span", { class: "toggle", role: "group", "aria-label": "View of keys and values" }, views.map(([name, text]) =>
            h("button", { type: "button", "aria-pressed": String(state.view === name), onclick: () => { state.view = name; draw(); } }, text)))),
        found.stopped ? notice(found.stopped, "warn") : null,
        found.records.length ? h("div", { class: "table records", tabindex: "0", role: "region", "aria-label": "Records" }, h("table", {},
          h("thead", {}, h("tr", {}, ["", "Part.", "Offset", "Time", "Key", "Value"].map((title, index) => h("th", { scope: "col", class: index === 1 || index === 2 ? "num" : index === 3 ? "wide" : "" }, title)))),
          h("tbody", {}, found.records.slice().reverse().map(row)))) : h("p", { class: "empty" }, "No record matches."),
      ] : null);
    morph(root.querySelector(".results"), fresh);
  }

  root.replaceChildren(h("h1", {}, "Messages"), explain("This page reads records without joining a group, so it changes no committed offset. A search reads at most 50,000 records, 32 MiB and 8 seconds. The newest record stands first."), form, result);
  if (topic) search();
  return () => { newest = NaN; state.found = null; };
}

export function produce(root, parameters) {
  const outcome = h("div", { class: "outcome", role: "status" });
  const part = (name, label, rows) => h("fieldset", {}, h("legend", {}, label),
    h("div", { class: "pick" },
      choice(`${name}_form`, [["text", "Text"], ["json", "JSON"], ["hex", "Hex"], ["null", name === "value" ? "null (tombstone)" : "null"]], name === "key" ? "null" : "text")),
    h("textarea", { name, rows, spellcheck: "false", "aria-label": label }));
  const form = h("form", { class: "card produce", onsubmit: (event) => { event.preventDefault(); send(); } },
    h("div", { class: "search" },
      field("Topic", h("input", { name: "topic", required: true, value: parameters.get("topic") ?? "", autocomplete: "off", spellcheck: "false" }), "grow"),
      field("Partition", h("input", { name: "partition", inputmode: "numeric", pattern: "[0-9]*", placeholder: "by key" }), "small")),
    part("key", "Key", 1), part("value", "Value", 5),
    h("fieldset", {}, h("legend", {}, "Headers, one NAME=TEXT a line"), h("textarea", { name: "headers", rows: 2, spellcheck: "false", "aria-label": "Headers" })),
    h("button", { class: "primary", type: "submit" }, "Send with acks=all"));
  const adapt = () => { for (const name of ["key", "value"]) form.elements[name].disabled = form.elements[`${name}_form`].value === "null"; };
  for (const name of ["key", "value"]) form.elements[`${name}_form`].onchange = adapt;
  adapt();

  async function send() {
    const of = form.elements;
    const value = (name) => of[`${name}_form`].value === "null" ? { [name]: null } : { [name]: of[name].value, [`${name}_form`]: of[`${name}_form`].value };
    const lines = of.headers.value.split("\n").filter((text) => text.trim()), wrong = lines.find((text) => !text.includes("="));
    if (wrong !== undefined) { outcome.replaceChildren(notice(`Headers: expected NAME=TEXT, not ${wrong}`, "bad")); return; }
    const headers = lines.map((text) => { const at = text.indexOf("="); return [text.slice(0, at).trim(), text.slice(at + 1)]; });
    const record = { topic: of.topic.value.trim(), partition: of.partition.value === "" ? null : Number(of.partition.value), ...value("key"), ...value("value"), headers };
    const button = form.querySelector("button[type=submit]");
    button.disabled = true;
    outcome.replaceChildren(h("p", { class: "quiet" }, "Sending."));
    try {
      const placed = await api("records", {}, { method: "POST", body: JSON.stringify(record) });
      outcome.replaceChildren(h("p", { class: "notice good" }, `All in-sync replicas have it: partition ${placed.partition}, offset ${placed.offset}, after ${placed.took_ms} ms. `,
        h("a", { href: link("messages", { topic: placed.topic, partition: placed.partition, origin: "offset", value: placed.offset }) }, "Show it")));
    } catch (error) { outcome.replaceChildren(notice(error.message, "bad")); }
    button.disabled = false;
  }

  root.replaceChildren(h("h1", {}, "Produce a record"), session.read_only ? notice("The console was started with --read-only: it sends nothing.", "warn") : form, outcome);
}

export async function configuration(root, parameters) {
  const kind = parameters.get("kind") ?? "broker", name = parameters.get("name") ?? "";
  const list = h("div", { class: "results" });
  const sought = h("input", { name: "sought", placeholder: "such as retention", autocomplete: "off", oninput: () => draw() });
  let found = null;
  const go = (to, of) => { location.hash = link("configuration", { kind: to, name: of }); };
  const names = h("select", { name: "name", onchange: () => go(kind, names.value) });
  const form = h("form", { class: "card search", onsubmit: (event) => event.preventDefault() },
    field("Of", choice("kind", [["broker", "a broker"], ["topic", "a topic"]], kind)), field("Name", names, "grow"), field("Key contains", sought, "grow"));
  function draw() {
    const text = sought.value.trim().toLowerCase();
    const rows = found.rows.filter((row) => row.key.includes(text));
    morph(list, h("div", { class: "results" }, table("Configuration", [
      ["Key and source", (row) => [h("code", {}, ...row.key.split(/(?<=\.)/).flatMap((part, index) => index ? [h("wbr"), part] : [part])), badge(row.source, row.default ? "" : "good")]],
      ["Value and meaning", (row) => [row.sensitive ? h("span", { class: "quiet" }, "hidden") : h("code", {}, row.value === "" ? "(empty)" : row.value ?? "–"), h("span", { class: "meaning" }, row.meaning ?? "")], "grow"],
    ], rows, "No key matches.")));
  }
  root.replaceChildren(h("h1", {}, "Configuration"), explain("Each key has a value and a source: a default, the node's file (static), or a dynamic setting of a broker, of all brokers or of a topic. Keys that were set stand first."), form, list);
  form.elements.kind.onchange = async () => { const known = await api("configurable"); const to = form.elements.kind.value; go(to, (to === "broker" ? known.broker[1] : known.topic[0]) ?? ""); };
  try {
    const known = await api("configurable");
    const chosen = name || (kind === "broker" ? known.broker[1] ?? "" : known.topic[0] ?? "");
    const options = known[kind] ?? [];
    names.replaceChildren(...[...new Set([...options, chosen])].map((each) => { const option = h("option", { value: each }, each === "" ? "default of all brokers" : each); option.selected = each === chosen; return option; }));
    if (kind === "topic" && !chosen) { list.replaceChildren(h("p", { class: "empty" }, "There are no topics.")); return; }
    found = await api("configuration", { kind, name: chosen });
    draw();
  } catch (error) { list.replaceChildren(notice(error.message, "bad")); }
}
