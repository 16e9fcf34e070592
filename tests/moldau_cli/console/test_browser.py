"""Goal: the console works in a real browser: every page, a killed leader, dark, narrow, by keyboard, signed in.

Method: ``moldau console`` in front of three brokers and one controller, and a headless Chromium. Without one the tests
skip and say so.
"""

import os
import re
import threading
from contextlib import contextmanager
from functools import partial

import pytest

from moldau.blocking import Admin, Consumer, Producer
from moldau_jepsen.launcher import ClusterSpec, open_cluster, start_cluster
from support.console.browser import WAIT_S, absent, open_browser
from support.proof import proof_beyond
from support.started import PIPE, Command

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(bool(absent()), reason=absent()),
    # selenium leaves sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
TOKEN = "a token+for the tests&100%41"
LONG = "a-long-name" * 22 + "-topic"
HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    directory = tmp_path_factory.mktemp("console") / "cluster"
    started = start_cluster(directory, ClusterSpec(brokers=3, controllers=1, settings={"node.watchdog.ms": "0"}))
    try:
        config = {"bootstrap.servers": started.bootstrap}
        with Admin(config) as admin:
            from moldau.admin import NewTopic

            admin.create_topics([NewTopic(name="flights", partitions=3, replication_factor=3)])
            admin.create_topics([NewTopic(name=LONG, partitions=1, replication_factor=1)])
        with Producer(config) as producer:
            for number in range(20):
                producer.send("flights", b'{"flight": %d}' % number, key=b"k%d" % number)
            producer.send("flights", HOSTILE.encode(), key=HOSTILE.encode())
            producer.flush()
        with Consumer({**config, "group.id": "analytics", "auto.offset.reset": "earliest"}) as consumer:
            consumer.subscribe(["flights"])
            while not consumer.poll(100):
                pass
            consumer.commit({("flights", 0): 1})
        yield started
    finally:
        open_cluster(directory).shut_down()


@contextmanager
def console(cluster, errors):
    """Runs the console as a user does, until the end of the block; yields it and the printed address."""
    words = ("console", "--dir", str(cluster.directory), "--no-browser")
    environment = {**os.environ, "MOLDAU_CONSOLE_TOKEN": TOKEN}
    with errors.open("wb") as log:
        running = Command(*words, stdout=PIPE, stderr=log, env=environment)
    watchdog = threading.Timer(300, running.kill)
    watchdog.start()
    try:
        url = running.stdout.readline().decode().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#token=.+", url), (url, errors.read_text())
        yield running, url
    finally:
        running.terminate()
        code = running.wait(30)
        running.stdout.close()
        watchdog.cancel()
        assert code == 0, errors.read_text()
        assert "Traceback" not in errors.read_text()


@pytest.fixture(scope="module")
def browser(cluster, tmp_path_factory):
    errors = tmp_path_factory.mktemp("console") / "errors"
    with console(cluster, errors) as (_, address), open_browser() as found:
        found.shape(1280, 900)
        found.driver.get(address)
        found.wait("document.querySelector('.verdict h1')")
        yield found


PAGES = {
    "overview": "The cluster is healthy",
    "topics": "flights",
    "topic?name=flights": "Configuration that was set",
    "messages?topic=flights": "21 records shown",
    "produce?topic=flights": "Send with acks=all",
    "groups": "analytics",
    "group?name=analytics": "records not consumed yet",
    "brokers": "127.0.0.1:",
    "controllers": "High watermark",
    "transactions": "No producer has used transactions",
    "acls": "no authorizer",
    "quotas": "uotas",
    "configuration?kind=topic&name=flights": "retention.ms",
    "configuration?kind=broker&name=1": "advertised.listeners",
    "replication": "A write counts when",
}


CURRENT_IS_SEEN = """(() => {
  const box = document.querySelector("#nav [aria-current]").getBoundingClientRect();
  return box.left >= -1 && box.right <= innerWidth + 1;
})()"""
"""The entry of the menu for the page; the menu of a narrow screen scrolls."""


def test_every_page_shows_the_cluster(browser):
    """Each page also fits 380 pixels, and gives no error in the console of the browser."""
    assert browser.run("return location.href").endswith("/"), "the token stays in no history"
    for page, words in PAGES.items():
        browser.shape(1280, 900)
        browser.go(page, words)
        browser.shape(380, 800, dark=True)
        assert browser.overflow() <= 0, f"{page} is wider than a narrow screen"
        browser.wait(CURRENT_IS_SEEN)
        if page.startswith("configuration"):
            hidden = browser.run(
                "const table = document.querySelector('.table'); return table.scrollWidth - table.clientWidth"
            )
            assert hidden <= 0, f"{page}: values are cut off"
    assert browser.complaints() == []


def test_a_missing_topic_is_named_and_the_cluster_is_live(browser):
    browser.go("topics", "flights")
    browser.go("topic?name=nowhere", "topic 'nowhere' does not exist")
    assert browser.text().startswith("nowhere")
    assert browser.run("return document.getElementById('live').innerText") == "live"


def test_a_long_name_hides_no_figures(browser):
    browser.shape(1280, 900)
    browser.go("topics", LONG)
    table = "document.querySelector('.table')"
    assert browser.run(f"return {table}.scrollWidth - {table}.clientWidth") <= 0


def test_dark_and_light_are_both_readable(browser):
    """The contrast of text to its background is at least 4.5 to 1 (WCAG AA)."""
    browser.go("overview", "healthy")
    seen = set()
    for dark in (True, False):
        browser.shape(1280, 900, dark=dark)
        browser.wait("document.getAnimations().length === 0")
        for selector in ("body", ".verdict h1", ".verdict p", ".fact .label", ".side a", ".invite strong"):
            text, back = browser.run(COLORS, selector)
            assert contrast(text, back) >= 4.5, (dark, selector, text, back)
            seen.add((dark, back))
    assert not {back for dark, back in seen if dark} & {back for dark, back in seen if not dark}


COLORS = """
const element = document.querySelector(arguments[0]);
const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
let behind = element;
while (behind && (rgb(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0) behind = behind.parentElement;
return [rgb(getComputedStyle(element).color).join(), rgb(getComputedStyle(behind).backgroundColor).join()];
"""


def contrast(one, other):
    def luminance(text):
        parts = [float(part) / 255 for part in text.split(",")[:3]]
        red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_hostile_records_are_shown_as_text(browser):
    browser.shape(1280, 900)
    browser.go("messages?topic=flights", "21 records shown")
    browser.run(
        "[...document.querySelectorAll('.record')].find((row) => row.innerText.includes('<img'))"
        ".querySelector('.fold').click()"
    )
    assert browser.wait("document.querySelector('.opened dd pre')").text == HOSTILE
    assert browser.run("return document.querySelectorAll('main img').length") == 0
    assert browser.run("return document.title") == "Messages · Moldau console"
    refused = "try { document.body.innerHTML = '<b>x</b>'; return 'set'; } catch (error) { return error.name; }"
    assert browser.run(refused) == "TypeError"


def test_pages_of_a_partition_follow_each_other(browser):
    browser.go("messages?topic=flights&partition=0&origin=offset&value=2", " shown, ")
    first = "[...document.querySelectorAll('.record td:nth-child(3)')].map((cell) => Number(cell.innerText)).at(-1)"
    assert browser.wait(f"{first} ?? null") == 2
    button = "[...document.querySelectorAll('.bar button')].find((button) => button.innerText === '{}')"
    assert browser.run(f"return {button.format('Newer')}.disabled"), "the last record is shown"
    browser.run(f"{button.format('Older')}.click()")
    browser.wait(f"{first} === 0")
    assert browser.run(f"return {button.format('Older')}.disabled"), "offset 0 is the first one"


HOLD = """
const real = window.fetch;
window.release = null;
window.fetch = (url, ...more) => url.startsWith("api/messages?") && !window.release
  ? new Promise((resolve) => { window.release = () => { window.fetch = real; resolve(real(url, ...more)); }; })
  : real(url, ...more);
"""
"""Keeps the answer to the next search until ``release()``."""
RELEASE = """
const done = arguments[0], ask = () => fetch("api/messages?topic=flights").then((answer) => answer.json());
window.release();
ask().then(ask).then(done);
"""


@pytest.mark.parametrize("leaves", [True, False])
def test_a_late_answer_hides_no_later_one(browser, leaves):
    """It was shown below the name of another topic, as if its records were there; or on another page."""
    browser.go("messages?topic=flights", "21 records shown")
    browser.run(HOLD)
    if leaves:
        browser.go(f"messages?topic={LONG}")
    else:
        browser.run("const form = document.querySelector('form'); form.topic.value = arguments[0];", LONG)
        browser.run("document.querySelector('form').requestSubmit()")
    browser.wait("window.release !== null")
    if leaves:
        browser.go("messages?topic=flights", "21 records shown")
    else:
        browser.run("document.querySelector('form').topic.value = 'flights'")
        browser.run("document.querySelector('form').requestSubmit()")
        browser.wait("!document.querySelector('main').innerText.includes('searching')")
    browser.driver.execute_async_script(RELEASE)
    assert "21 records shown" in browser.text()


def test_a_reload_keeps_what_was_searched(browser):
    """The form was empty again, and a filter was lost as often as the page connected again."""
    browser.go("messages?topic=flights", "21 records shown")
    browser.run("const of = document.querySelector('form').elements; of.contains.value = ': 7'; of.limit.value = '100'")
    browser.run("document.querySelector('form').requestSubmit()")
    browser.wait("document.querySelector('main').innerText.includes('1 record shown')")
    browser.driver.refresh()
    browser.wait("document.querySelector('main').innerText.includes('1 record shown')")
    kept = (
        "const of = document.querySelector('form').elements; return [of.contains.value, of.limit.value, of.topic.value]"
    )
    assert browser.run(kept) == [": 7", "100", "flights"]
    browser.go("topics", LONG)
    browser.run("const typed = document.querySelector('input[type=search]'); typed.value = 'fli'; typed.oninput()")
    browser.wait("!document.querySelector('main').innerText.includes(arguments[0])", LONG)
    browser.driver.refresh()
    browser.wait("document.querySelector('main').innerText.includes('flights')")
    assert browser.run("return document.querySelector('input[type=search]').value") == "fli"
    assert LONG not in browser.text()


def test_a_record_is_produced_by_keyboard(browser):
    """Tab reaches every control in order, and what has the focus is marked."""
    from selenium.webdriver.common.keys import Keys

    browser.go("produce?topic=flights", "Send with acks=all")
    browser.run("document.querySelector('.skip').focus()")
    focused = "document.activeElement"
    order = []
    for _ in range(40):
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
        order.append(browser.run(f"return {focused}.name || {focused}.innerText"))
        if order[-1] == "value":
            break
    assert [name for name in order if name in ("Overview", "topic", "partition", "key_form", "value")] == [
        "Overview",
        "topic",
        "partition",
        "key_form",
        "value",
    ]
    assert browser.run(f"return getComputedStyle({focused}).outlineStyle") == "solid"
    browser.driver.switch_to.active_element.send_keys("typed by hand", Keys.TAB, Keys.TAB)
    assert browser.run(f"return {focused}.innerText") == "Send with acks=all"
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert "All in-sync replicas have it" in browser.wait("document.querySelector('.outcome .good')").text
    browser.driver.find_element("link text", "Show it").send_keys(Keys.ENTER)
    browser.wait("document.querySelector('main').innerText.includes('typed by hand')")


def test_a_send_takes_the_last_answer_away(browser):
    """Else "All in-sync replicas have it" of the last record would stand beside one that waits."""
    browser.go("produce?topic=flights", "Send with acks=all")
    press, outcome = "document.querySelector('main form [type=submit]').click()", "document.querySelector('.outcome')"
    browser.run(press)
    browser.wait(f"{outcome}.innerText.includes('All in-sync replicas have it')")
    browser.run("window.ask = window.fetch; window.fetch = () => new Promise(() => {})")
    try:
        browser.run(press)
        assert browser.run(f"return {outcome}.innerText") == "Sending."
    finally:
        browser.run("window.fetch = window.ask")


def test_a_form_says_what_it_lacks(browser):
    """A line of headers without = was left out of the record without a word; a blank time was that of 1970."""
    browser.go("produce?topic=flights", "Send with acks=all")
    browser.run("const form = document.querySelector('form'); form.headers.value = 'a=b\\ntrace'; form.requestSubmit()")
    browser.wait("document.querySelector('.outcome .bad')?.innerText === 'Headers: expected NAME=TEXT, not trace'")
    browser.go("messages?topic=flights&origin=time", "Choose the time to begin at.")
    assert "shown" not in browser.text()


def test_durations_are_rounded_as_a_whole(browser):
    """119.999 s were 1 min 60 s."""
    known = {999.6: "1.0 s", 59_949: "59.9 s", 59_999: "1 min 0 s", 119_999: "2 min 0 s", 3_599_900: "1.0 h"}
    shown = "const [times, done] = arguments; import('./dom.js').then((dom) => done(times.map(dom.duration)));"
    assert browser.driver.execute_async_script(shown, list(known)) == list(known.values())


def test_times_name_their_distance_from_utc(browser):
    """Both hours from two to three of October 25 looked alike in Berlin, in the list of records and anywhere else."""
    known = {
        1_774_745_999_000: "2026-03-29 01:59:59.000 +01:00",
        1_774_746_000_000: "2026-03-29 03:00:00.000 +02:00",
        1_792_889_999_000: "2026-10-25 02:59:59.000 +02:00",
        1_792_890_000_000: "2026-10-25 02:00:00.000 +01:00",
    }
    elsewhere = {"America/St_Johns": "2026-10-24 22:30:00.000 -02:30", "UTC": "2026-10-25 01:00:00.000 +00:00"}
    shown = "const [times, done] = arguments; import('./dom.js').then((dom) => done(times.map(dom.when)));"
    change_zone = partial(browser.driver.execute_cdp_cmd, "Emulation.setTimezoneOverride")
    try:
        change_zone({"timezoneId": "Europe/Berlin"})
        assert browser.driver.execute_async_script(shown, list(known)) == list(known.values())
        for zone, text in elsewhere.items():
            change_zone({"timezoneId": zone})
            assert browser.driver.execute_async_script(shown, [1_792_890_000_000]) == [text]
    finally:
        change_zone({"timezoneId": ""})


def test_a_killed_leader_is_replaced_before_your_eyes(browser):
    """The buttons kill, start, pause and resume; the events list the election, and writes go on."""
    browser.shape(1280, 1200)
    browser.go("replication", "A write counts when")
    leader = browser.wait("document.querySelector('.machine.leader')?.dataset.node")
    before = browser.run(PLACES)
    press(browser, "Kill", leader)
    browser.wait("document.querySelector('.log').innerText.includes('is the new leader, in leader epoch')")
    browser.wait(
        "document.querySelector('.log').innerText.includes('Writes are acknowledged again after') "
        "|| document.querySelector('.log').innerText.includes('left the in-sync replicas')"
    )
    assert browser.wait("document.querySelector('.machine.leader')?.dataset.node") != leader
    assert browser.run(PLACES) == before, "the page does not jump while it changes"
    browser.wait('document.querySelector(`[aria-label="Start broker ${arguments[0]}"]`)', leader)
    press(browser, "Start", leader)
    browser.wait("document.querySelector('.log').innerText.includes(`Broker ${arguments[0]} caught up`)", leader)
    press(browser, "Pause", leader)
    browser.wait("document.querySelector('.machine.paused')")
    press(browser, "Resume", leader)
    browser.wait("!document.querySelector('.machine.paused')")
    painted = "const [c] = document.getElementsByTagName('canvas'); const { data } = c.getContext('2d')"
    painted += ".getImageData(0, 0, c.width, c.height); return data.some((byte) => byte > 0);"
    assert browser.run(painted)


PLACES = """
const place = (name) => document.querySelector(name).getBoundingClientRect();
return ['.cards', '.timeline', '.legend', '.log'].map((name) => [name, Math.round(place(name).top)]);
"""


def press(browser, action, node):
    label = f"{action} broker {node}"
    # The page draws its buttons again with each change of a node, so finding and clicking are one step.
    click = "(button => button && !button.disabled && (button.click(), true))"
    browser.wait(click + '(document.querySelector(`[aria-label="${arguments[0]}"]`))', label)


@pytest.mark.parametrize("page", proof_beyond(1, ["replication", "topics"]))
def test_a_console_that_has_ended_is_named(browser, cluster, tmp_path, page):
    """The page said "offline" in a corner, and showed its last answer as if it were the present."""
    here = browser.run("return location.href.split('#')[0]")
    with console(cluster, tmp_path / "errors") as (running, address):
        browser.driver.get(address)
        browser.wait("document.querySelector('.verdict h1')")
        browser.go(page, PAGES[page])
        running.terminate()
        browser.wait("document.querySelector('main').innerText.includes('Is `moldau console` still running?')")
        assert browser.text().count("does not answer") == 1
        if page == "topics":
            assert "flights" in browser.wait("document.querySelector('.body.stale')").text
    browser.driver.get(here)
    browser.wait("document.querySelector('.verdict h1')")


REOPENED = """
const done = arguments[0], { EventSource, setTimeout, clearTimeout } = window, timers = [], said = [];
let source;
window.EventSource = class extends EventTarget {
  static CLOSED = 2;
  readyState = 0;
  constructor() { super(); source = this; }
  close() {}
};
window.setTimeout = (call) => timers.push(call);
window.clearTimeout = (number) => { if (number) timers[number - 1] = () => {}; };
import("./dom.js").then(({ live }) => {
  const end = live("topic", {}, () => {}, (text) => said.push(text));
  source.onerror();
  source.onopen();
  source.dispatchEvent(new MessageEvent("trouble", { data: JSON.stringify({ error: "no such topic", status: 404 }) }));
  timers.forEach((call) => call());
  end();
  Object.assign(window, { EventSource, setTimeout, clearTimeout });
  done(said);
});
"""


def test_a_console_that_answers_again_is_not_called_silent(browser):
    """The words about a lost connection came after the console's own, and stayed: they are sent once."""
    assert browser.driver.execute_async_script(REOPENED) == ["no such topic"]


LOCKS = """
const waiting = [];
const next = () => { waiting[0]?.grant(); };
const request = (name, { signal }, work) => {
  const own = { grant: () => { own.grant = () => {}; Promise.resolve(work()).then(() => { leave(); }); } };
  const leave = () => { const place = waiting.indexOf(own); if (place >= 0) { waiting.splice(place, 1); next(); } };
  signal.addEventListener("abort", leave);
  waiting.push(own);
  next();
  return Promise.resolve();
};
Object.defineProperty(navigator, "locks", { configurable: true, value: { request } });
"""
"""Locks of the browser that are granted at once, where they are free."""
HIDDEN = """
const done = arguments[0], { EventSource } = window;
let streams = 0, most = 0, hides = false;
window.EventSource = class extends EventTarget {
  constructor() { super(); streams += 1; }
  close() { streams -= 1; }
};
Object.defineProperty(document, "hidden", { configurable: true, get: () => hides });
const turn = (to) => { hides = to; document.dispatchEvent(new Event("visibilitychange")); };
import("./dom.js").then(({ live }) => {
  const seen = [], ends = [live("topics", {}, () => {}, () => {})];
  for (const _ of [1, 2, 3]) ends.push(live("timeline", {}, () => {}, () => {}, true));
  const before = streams;
  for (const to of [true, false, false]) { turn(to); seen.push(streams); }
  ends.forEach((end) => end());
  turn(true);
  turn(false);
  delete document.hidden;
  delete navigator.locks;
  window.EventSource = EventSource;
  done([before, ...seen, streams]);
});
"""


def test_a_hidden_tab_has_no_connection(browser):
    """A browser has six for all tabs: a seventh tab stayed empty, and no button of the six got an answer.

    Of the hidden pages that must go on watching one has a connection for all.
    """
    browser.go("messages", "Show records")  # a page without a stream of its own
    assert browser.driver.execute_async_script(LOCKS + HIDDEN) == [4, 1, 4, 4, 0]


UNFOCUSED = """
const [steps, always, done] = arguments, { EventSource, setTimeout, clearTimeout } = window;
const streams = new Set(), timers = new Map();
let opened = 0, has = true, hides = false;
window.EventSource = class extends EventTarget {
  constructor() { super(); opened += 1; streams.add(this); }
  close() { streams.delete(this); }
};
window.setTimeout = (call) => { timers.set(timers.size + 1, call); return timers.size; };
window.clearTimeout = (number) => { if (number) timers.set(number, () => {}); };
Object.defineProperty(document, "hasFocus", { configurable: true, value: () => has });
Object.defineProperty(document, "hidden", { configurable: true, get: () => hides });
const focus = (to) => { has = to; window.dispatchEvent(new Event(to ? "focus" : "blur")); };
const hide = (to) => { hides = to; document.dispatchEvent(new Event("visibilitychange")); };
const event = (kind) => new MessageEvent(kind, { data: '{"status": 503}' });
const answer = (kind) => streams.forEach((each) => each.dispatchEvent(event(kind)));
const pass = () => [...timers].forEach(([number, call]) => { timers.set(number, () => {}); call(); });
const actions = {
  blur: () => focus(false), focus: () => focus(true), hide: () => hide(true), show: () => hide(false),
  data: () => answer("data"), trouble: () => answer("trouble"), pass,
};
import("./dom.js").then(({ live }) => {
  const end = live("topics", {}, () => {}, () => {}, always);
  const seen = steps.map((step) => { actions[step](); return [streams.size, opened]; });
  end();
  pass();
  focus(true);
  delete document.hasFocus;
  delete document.hidden;
  delete navigator.locks;
  Object.assign(window, { EventSource, setTimeout, clearTimeout });
  done([...seen, [streams.size, opened]]);
});
"""


@pytest.mark.parametrize(
    ("always", "steps"),
    [
        # Each step is followed by the streams that are open, and by how many have been opened.
        (False, {"data": (1, 1), "blur": (0, 1), "blur ": (0, 1), "pass": (1, 2), "trouble": (0, 2), "focus": (1, 3)}),
        (False, {"blur": (1, 1), "data": (0, 1), "hide": (0, 1), "pass": (0, 1), "show": (1, 2)}),
        (True, {"data": (1, 1), "blur": (0, 1), "hide": (1, 2), "data ": (1, 2), "show": (0, 2)}),
    ],
)
def test_a_window_without_focus_holds_no_stream(browser, always, steps):
    """It closes its stream with the answer, and asks again after a rest; a window with the focus keeps its own."""
    browser.go("messages", "Show records")  # a page without a stream of its own
    found = browser.driver.execute_async_script(LOCKS + UNFOCUSED, [step.strip() for step in steps], always)
    opened = [*steps.values()][-1][1]
    assert list(map(tuple, found)) == [*steps.values(), (0, opened)]


def test_eight_windows_follow_the_cluster(browser, cluster):
    """A browser has six connections to a console: with a stream for each window, the seventh stayed empty."""
    here, driver = browser.run("return location.href.split('#')[0]"), browser.driver
    driver.set_page_load_timeout(WAIT_S)
    first = driver.current_window_handle
    try:
        for _ in range(8):
            driver.switch_to.new_window("window")
            driver.get(f"{here}#/topics")
            browser.wait("document.querySelector('main')?.innerText.includes('flights')")
            assert not browser.run("return document.hidden"), "a hidden window would need no connection"
        with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
            from moldau.admin import NewTopic

            admin.create_topics([NewTopic(name="seen-by-all", partitions=1, replication_factor=1)])
        for window in driver.window_handles:
            if window != first:
                driver.switch_to.window(window)
                browser.wait("document.querySelector('main').innerText.includes('seen-by-all')")
                assert browser.run("return document.getElementById('live').innerText") == "live"
    finally:
        for window in driver.window_handles:
            if window != first:
                driver.switch_to.window(window)
                driver.close()
        driver.switch_to.window(first)


RESTARTED = """
const done = arguments[0], { EventSource } = window;
let source;
window.EventSource = class {
  static CLOSED = 2;
  readyState = 2;
  constructor() { source = this; }
  addEventListener() {}
};
import("./dom.js").then(({ live, session }) => {
  window.known = session;
  const present = session.csrf;
  session.csrf = "of the console before";
  live("topics", {}, () => {}, () => {});
  window.EventSource = EventSource;
  source.onerror();
  done(present);
});
"""


def test_a_page_goes_on_with_a_console_started_again(browser):
    """Pages followed it, but each press of a button was refused: it came with the token of the former session."""
    present = browser.driver.execute_async_script(RESTARTED)
    browser.wait("window.known.csrf === arguments[0]", present)


ENDED = """
const done = arguments[0], { EventSource } = window;
let source;
window.EventSource = class extends EventTarget {
  constructor() { super(); source = this; }
  close() { this.isClosed = true; }
};
const send = (kind, data) => source.dispatchEvent(new MessageEvent(kind, { data: JSON.stringify(data) }));
const light = () => document.getElementById("live").innerText;
import("./dom.js").then(({ live, session }) => {
  window.known = session;
  const seen = [], end = live("topics", {}, () => {}, () => seen.push("shown as trouble"));
  window.EventSource = EventSource;
  send("data", {});
  seen.push(light());
  send("late", {});
  seen.push(light());
  send("data", {});
  seen.push(light());
  window.addEventListener("signed-out", (event) => seen.push(event.detail), { once: true });
  send("trouble", { error: "Sign in again.", status: 401 });
  end();
  done([...seen, source.isClosed]);
});
"""


def test_a_live_page_says_when_it_waits_and_when_it_has_ended(browser):
    browser.go("messages", "Show records")  # a page without a stream of its own
    found = browser.driver.execute_async_script(ENDED)
    assert found == ["live", "waiting", "live", "Sign in again.", True]
    browser.wait("window.known.csrf")  # the page asked whether its session has ended; it had not


SPOILED = """
const done = arguments[0];
import("./dom.js").then(({ session }) => {
  const { csrf } = session;
  session.csrf = "of another session";
  [...document.querySelectorAll('#account button')].at(-1).click();
  session.csrf = csrf;
  done();
});
"""


def test_a_refused_sign_out_is_shown(browser):
    """The button did nothing, and its user left a page that was signed in."""
    browser.driver.execute_async_script(SPOILED)
    browser.wait("document.querySelector('main .bad')?.innerText.startsWith('You are still signed in.')")


def test_signing_out_asks_for_the_token_again(browser):
    browser.run("[...document.querySelectorAll('#account button')].at(-1).click()")
    field = browser.wait("document.querySelector('.sign-in input[name=token]')")
    assert browser.run("return document.getElementById('account').innerText") == ""
    field.send_keys("not the token\n")
    browser.wait("document.querySelector('.sign-in .bad')?.innerText.includes('the token is wrong')")
    field.clear()
    field.send_keys(TOKEN, "\n")
    browser.wait("document.querySelector('main h1') && !document.querySelector('.sign-in')")


def test_an_ended_session_says_why_and_the_page_goes_on(browser):
    """The form came without a word, below the name of the user and a button to sign out."""
    browser.go("messages?topic=flights", "records shown")
    browser.driver.delete_all_cookies()
    browser.run("document.querySelector('form').elements.contains.value = ': 7'")
    browser.run("document.querySelector('form').requestSubmit()")
    field = browser.wait("document.querySelector('.sign-in input[name=token]')")
    assert "The session has ended. Sign in again." in browser.text()
    assert browser.run("return document.getElementById('account').innerText") == ""
    field.send_keys(TOKEN, "\n")
    browser.wait("document.querySelector('main').innerText.includes('1 record shown')")
