// The frame of the console: session, navigation, and the page that the address names.
import { api, explain, h, live, morph, notice, remember, session, shown } from "./dom.js";
import { PAGES } from "./pages.js";
import { configuration, messages, produce } from "./records.js";
import { replication } from "./replication.js";

const OWN = {
  replication: { title: "Replication", mount: replication },
  messages: { title: "Messages", mount: messages },
  produce: { title: "Produce", mount: produce },
  configuration: { title: "Configuration", mount: configuration },
};
const MENU = ["overview", "replication", "topics", "messages", "produce", "groups", "brokers", "controllers", "transactions", "acls", "quotas", "configuration"];
const BELONGS = { topic: "topics", group: "groups" };

const main = document.getElementById("main");
let leave = () => {};

function address() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { name: path || "overview", parameters: new URLSearchParams(query ?? "") };
}

function menu(current) {
  const entries = MENU.filter((name) => (name !== "replication" || session.local) && (name !== "produce" || !session.read_only));
  morph(document.getElementById("nav"), h("nav", { class: "side", id: "nav", "aria-label": "Pages" },
    h("ul", {}, entries.map((name) => h("li", {}, h("a", { href: `#/${name}`, "aria-current": name === (BELONGS[current] ?? current) ? "page" : null }, (PAGES[name] ?? OWN[name]).title))))));
  showCurrent();
}

// On a narrow screen the menu is one line that scrolls; the page itself stays where it is.
function showCurrent() {
  const menu = document.getElementById("nav"), entry = menu.querySelector("[aria-current]");
  if (!entry) return;
  const frame = menu.getBoundingClientRect(), box = entry.getBoundingClientRect();
  if (box.left < frame.left || box.right > frame.right) menu.scrollLeft += (box.left + box.right - frame.left - frame.right) / 2;
}

// Shows a page of `PAGES`: a heading with its filter, and a body that follows the live answers.
function follow(page, parameters) {
  const asked = Object.fromEntries(parameters), body = h("div", { class: "body" }, h("p", { class: "skeleton", "aria-label": "Loading" }));
  const head = [];
  let stop = () => {}, timer = 0;
  const trouble = h("div", { class: "trouble" });
  const listen = () => {
    stop();
    stop = live(page.question, asked, (document) => { trouble.replaceChildren(); body.classList.remove("stale"); morph(body, h("div", { class: "body" }, page.view(document))); },
      (text, refused) => {
        body.querySelector(".skeleton")?.remove(); body.classList.add("stale");
        const title = head.length || body.childNodes.length ? null : h("h1", {}, asked.name || page.title);
        morph(trouble, h("div", { class: "trouble" }, title, notice(text, "bad"), body.childNodes.length && !refused ? notice("Below stands the last answer. The page follows again as soon as the cluster answers.", "warn") : null));
      });
  };
  const ask = (name, value) => { asked[name] = value; remember(address().name, asked); listen(); };
  if (page.filter) {
    head.push(h("h1", {}, page.title), explain(page.help));
    const typed = h("input", { type: "search", autocomplete: "off", value: asked.filter ?? "", oninput: () => { clearTimeout(timer); timer = setTimeout(() => ask("filter", typed.value), 250); } });
    const box = page.box ? h("label", { class: "check" }, h("input", { type: "checkbox", checked: asked[page.box[0]] === "1", onchange: (event) => ask(page.box[0], event.target.checked ? "1" : "") }), page.box[1]) : null;
    head.push(h("div", { class: "bar" }, h("label", { class: "field" }, h("span", {}, page.filter), typed), box));
  }
  main.replaceChildren(...head, trouble, body);
  listen();
  return () => { clearTimeout(timer); stop(); };
}

function show() {
  if (!session.csrf) return;
  const { name, parameters } = address();
  const page = PAGES[name] ?? OWN[name];
  leave();
  leave = () => {};
  menu(name);
  document.title = `${page?.title ?? "Not found"} · Moldau console`;
  if (!page) { main.replaceChildren(h("h1", {}, "There is no such page"), h("p", {}, h("a", { href: "#/overview" }, "Go to the overview"))); return; }
  const light = document.getElementById("live");
  if (name !== "replication" && !PAGES[name]) { light.dataset.state = "idle"; light.textContent = "on demand"; }
  main.dataset.page = name;
  const end = page.mount ? page.mount(main, parameters) : follow(page, parameters);
  if (typeof end === "function") leave = end;
  if (shown.address && shown.address !== location.hash) { main.focus({ preventScroll: true }); window.scrollTo(0, 0); }
  shown.address = location.hash || "#";
}

function signIn(wanted, token, why) {
  leave();
  leave = () => {};
  document.getElementById("account").replaceChildren();
  document.getElementById("nav").replaceChildren();
  document.getElementById("live").textContent = "signed out";
  const said = h("div", { role: "alert" }, why ? notice(why, "warn") : null);
  const form = h("form", { class: "card sign-in", onsubmit: async (event) => {
    event.preventDefault();
    const of = form.elements, body = {};
    for (const name of ["token", "user", "password", "mechanism"]) if (of[name]) body[name] = of[name].value;
    try { await enter(body); } catch (error) { said.replaceChildren(notice(error.message, "bad")); }
  } },
    h("h1", {}, "Sign in"),
    wanted.wants_token ? h("label", { class: "field" }, h("span", {}, "Token of this console"), h("input", { name: "token", type: "password", required: true, autocomplete: "off", value: token || null })) : null,
    wanted.wants_login ? [
      h("label", { class: "field" }, h("span", {}, "User of the cluster"), h("input", { name: "user", required: true, autocomplete: "username", autocapitalize: "none", spellcheck: "false" })),
      h("label", { class: "field" }, h("span", {}, "Password"), h("input", { name: "password", type: "password", required: true, autocomplete: "current-password" })),
      h("label", { class: "field" }, h("span", {}, "Mechanism"), h("select", { name: "mechanism" }, wanted.mechanisms.map((each) => h("option", { value: each }, each)))),
      h("p", { class: "quiet" }, "You see and do what this user may see and do."),
    ] : null,
    h("button", { class: "primary", type: "submit" }, "Sign in"), said);
  main.replaceChildren(form);
  [...form.querySelectorAll("input")].find((field) => !field.value)?.focus();
}

async function enter(body) {
  Object.assign(session, await api("session", {}, { method: "POST", body: JSON.stringify(body) }));
  begin();
}

function begin() {
  document.getElementById("place").textContent = session.bootstrap;
  const account = document.getElementById("account");
  account.replaceChildren(session.read_only ? h("span", { class: "badge" }, "read-only") : "", session.user ? h("span", { class: "quiet" }, session.user) : "",
    session.can_sign_out ? h("button", { type: "button", onclick: signOut }, "Sign out") : "");
  show();
}

async function signOut() {
  try { await api("session", {}, { method: "DELETE" }); } catch (error) { main.prepend(notice(`You are still signed in. ${error.message}`, "bad")); return; }
  location.reload();
}

async function start(why = "") {
  // A token that was written there by hand may have a plus sign, which stands for a blank in forms alone.
  const token = new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B")).get("token");
  if (token) history.replaceState(null, "", location.pathname);
  let found;
  try { found = await api("session"); } catch (error) { main.replaceChildren(notice(error.message, "bad")); return; }
  if (found.signed_in) { Object.assign(session, found); begin(); return; }
  if (token && !found.wants_login) { try { await enter({ token }); return; } catch { /* the form below asks for it */ } }
  signIn(found, token, why);
}

window.addEventListener("hashchange", show);
window.addEventListener("resize", showCurrent);
window.addEventListener("signed-out", (event) => { if (session.csrf) { delete session.csrf; start(event.detail || "The session has ended. Sign in again."); } });
start();
