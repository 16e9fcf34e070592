// Replication at work: nodes with fault buttons, acknowledged writes, and who led when.
import { api, badge, duration, explain, explainAs, h, live, morph, notice, number, session } from "./dom.js";

const ROLES = { leader: "leader", "in-sync": "in sync", "out-of-sync": "out of sync", none: "no replica", active: "active", voter: "voter" };
const LANE = 26, WRITES = 84, AXIS = 20, LABEL = 92;

function headline(seen) {
  if (seen.leader_epoch < 0) return "Waiting for the first write.";
  if (seen.leader < 0) return "The partition has no leader: writes wait until an in-sync replica is back.";
  const others = seen.isr.filter((node) => node !== seen.leader).sort((one, other) => one - other);
  if (!others.length) return `Broker ${seen.leader} leads alone: no other replica is in sync, and acks=all is refused below min.insync.replicas.`;
  return `Broker ${seen.leader} leads. A write counts when ${others.length === 1 ? `broker ${others[0]} has` : `brokers ${others.join(" and ")} have`} copied it.`;
}

export function replication(root) {
  let seen = null, arrived = 0, error = "", lost = "", busy = new Map(), frame = 0, ended = false;
  const canvas = h("canvas", { class: "timeline", role: "img", "aria-label": "Acknowledged writes and roles of the nodes in the last minute; the events below tell the same in words" });
  const head = h("div", { class: "head" }), cards = h("div", { class: "cards" }), log = h("div", { class: "log" });
  root.replaceChildren(h("h1", {}, "Replication at work"),
    explain("The console writes ten small records a second with acks=all to one partition with three replicas, topic moldau-console-probe, while this page is open. Kill the leader: writes stop for a moment, a replica that has every acknowledged record takes over, and nothing acknowledged is lost. Start the node again: it copies what it missed and joins the in-sync replicas. Kill controllers too: a majority of them must live for elections."),
    head, cards,
    session.links ? explainAs("What does Cut do?", "Cut takes a node off the network: its connections stay open and carry nothing. The others wait for its heartbeats until broker.session.timeout.ms (9 s) is over, then another replica leads; Heal brings it back.") : explainAs("How can nodes be cut off?", "To cut nodes off from each other as well, begin the cluster with `moldau cluster start --links`."),
    h("section", { class: "card" }, h("h2", {}, "The last minute"), canvas,
      h("p", { class: "legend" }, [["ack", "acknowledged write, height is latency"], ["gap", "no acknowledgement"], ["leader", "leader, or active controller"], ["in-sync", "in sync"], ["behind", "out of sync"], ["paused", "paused"], ["cut", "cut off"], ["stopped", "down"]].map(([kind, text]) => h("span", {}, h("i", { class: `key ${kind}` }), text)))),
    h("section", { class: "card" }, h("h2", {}, "What happened"), log));

  async function act(node, action) {
    busy.set(node, action);
    error = "";
    draw();
    try { await api(`nodes/${node}/${action}`, {}, { method: "POST" }); } catch (problem) { error = problem.message; }
    busy.delete(node);
    draw();
  }

  function card(lane) {
    const is = lane.state, waits = busy.get(lane.node);
    const button = (action, text, possible) => h("button", { type: "button", class: action === "kill" ? "danger" : "", disabled: !possible || waits !== undefined, "aria-label": `${text} ${lane.kind} ${lane.node}`, onclick: () => act(lane.node, action) }, text);
    const role = is === "running" ? ROLES[lane.role] : is === "paused" ? "paused" : is === "cut" ? "cut off" : is === "stopped" ? "down" : "looking";
    return h("div", { class: `machine ${is} ${lane.role}`, "data-node": lane.node },
      h("div", { class: "title" }, h("strong", {}, `${lane.kind === "broker" ? "Broker" : "Controller"} ${lane.node}`),
        badge(role, is !== "running" ? "bad" : lane.role === "leader" || lane.role === "active" ? "lead" : lane.role === "out-of-sync" ? "warn" : lane.role === "in-sync" ? "good" : "")),
      h("div", { class: "buttons" }, waits ? h("span", { class: "quiet waits" }, `${waits}…`) : is === "stopped" ? [button("start", "Start", true)] : [button("kill", "Kill", true), is === "paused" ? button("resume", "Resume", true) : button("pause", "Pause", is === "running"), is === "running" ? button("restart", "Restart", true) : null, session.links ? is === "cut" ? button("heal", "Heal", true) : button("cut", "Cut", is === "running") : null]));
  }

  function draw() {
    if (!seen) { if (lost) morph(head, h("div", { class: "head" }, notice(lost, "bad"))); return; }
    const silent = seen.silent_ms !== null && seen.silent_ms > 1000;
    morph(head, h("div", { class: "head" },
      h("p", { class: "headline" }, headline(seen)),
      error ? notice(error, "bad") : null, lost ? notice(lost, "bad") : null,
      seen.trouble && !silent ? notice(seen.trouble, "warn") : null,
      h("div", { class: "facts" },
        h("div", { class: "fact" }, h("span", { class: "label" }, "Acknowledged"), h("span", { class: "value" }, number(seen.acknowledged)), h("span", { class: "detail" }, `of ${number(seen.sent)} sent`)),
        h("div", { class: `fact ${silent ? "bad" : ""}` }, h("span", { class: "label" }, "Last acknowledgement"), h("span", { class: "value" }, seen.silent_ms === null ? "–" : silent ? `${Math.floor(seen.silent_ms / 1000)} s ago` : "now"), h("span", { class: "detail" }, silent ? "writes wait" : "all in-sync replicas")),
        h("div", { class: "fact" }, h("span", { class: "label" }, "Longest pause"), h("span", { class: "value" }, duration(longest())), h("span", { class: "detail" }, "in the last minute")),
        h("div", { class: "fact" }, h("span", { class: "label" }, "Leader epoch"), h("span", { class: "value" }, seen.leader_epoch < 0 ? "–" : seen.leader_epoch), h("span", { class: "detail" }, "one more each election")))));
    const fresh = h("div", { class: "cards" }, seen.lanes.map(card));
    morph(cards, fresh);
    morph(log, h("div", { class: "log" }, seen.notes.length ? h("ol", { reversed: true }, seen.notes.slice(0, 20).map((note) => h("li", { class: note.kind }, h("time", {}, `${duration(note.ago_ms)} ago`), h("span", {}, note.text)))) : h("p", { class: "quiet" }, "Nothing yet. Kill the leader to see an election.")));
    paint();
  }

  function longest() {
    let most = 0;
    for (let index = 1; index < seen.writes.length; index += 1) most = Math.max(most, seen.writes[index - 1][0] - seen.writes[index][0]);
    return Math.max(most, seen.silent_ms ?? 0);
  }

  function paint() {
    if (!seen || !canvas.clientWidth) return;
    const style = getComputedStyle(canvas), color = (name) => style.getPropertyValue(`--${name}`).trim();
    const width = canvas.clientWidth, height = WRITES + AXIS + seen.lanes.length * LANE + 8, scale = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.height = `${height}px`;
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    const label = width < 500 ? 40 : LABEL, drift = performance.now() - arrived;
    const at = (ago) => label + (width - label - 6) * (1 - (ago + drift) / seen.window_ms), left = (ago) => Math.max(label, at(ago));
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.fillStyle = color("quiet");
    pen.fillText(width < 500 ? "acks" : "writes", 0, WRITES / 2);
    for (let second = 0; second <= 60; second += 10) {
      const x = Math.round(label + (width - label - 6) * (1 - second / 60)) + 0.5;
      pen.fillStyle = color("line");
      pen.fillRect(x, 4, 1, height - AXIS - 4);
      pen.fillStyle = color("quiet");
      pen.textAlign = second === 0 ? "right" : "center";
      if (second < 60) pen.fillText(second === 0 ? "now" : `${second} s`, x, height - AXIS / 2 + 2);
    }
    pen.textAlign = "left";
    // Pauses without an acknowledgement, and the one that may still last.
    const pauses = [];
    for (let index = 1; index < seen.writes.length; index += 1) if (seen.writes[index - 1][0] - seen.writes[index][0] > 400) pauses.push([seen.writes[index - 1][0], seen.writes[index][0]]);
    if (seen.silent_ms !== null && seen.silent_ms > 700) pauses.push([seen.silent_ms, -drift]);
    for (const [from, to] of pauses) {
      const x = left(from), end = at(to);
      if (end <= label) continue;
      pen.fillStyle = color("gap");
      pen.fillRect(x, 4, Math.max(2, end - x), WRITES - 8);
      pen.fillStyle = color("bad");
      const text = `${((from - to) / 1000).toFixed(1)} s`;
      if (end - x > 8) pen.fillText(text, Math.min(end + 4, width - 36), 14);
    }
    pen.fillStyle = color("good");
    for (const [ago, took] of seen.writes) {
      const x = at(ago);
      if (x < label) continue;
      const tall = Math.min(WRITES - 14, 6 + 16 * Math.log10(1 + took));
      pen.fillRect(x - 1, WRITES - 4 - tall, 2, tall);
    }
    pen.fillStyle = color("bad");
    for (const ago of seen.failures) if (at(ago) > label) pen.fillRect(at(ago) - 1, 4, 3, WRITES - 8);
    seen.lanes.forEach((lane, row) => {
      const y = WRITES + row * LANE, middle = y + LANE / 2;
      pen.fillStyle = color("text");
      pen.fillText(width < 500 ? lane.node : `${lane.kind === "broker" ? "Broker" : "Controller"} ${lane.node}`, 0, middle);
      lane.segments.forEach(([ago, state, role], index) => {
        const x = left(ago), end = index + 1 < lane.segments.length ? at(lane.segments[index + 1][0]) : width - 6;
        if (end <= label) return;
        const kind = state === "stopped" ? "stopped" : state === "paused" ? "paused" : state === "cut" ? "cut" : { leader: "leader", active: "leader", "in-sync": "insync", "out-of-sync": "behind" }[role] ?? "voter";
        const tall = kind === "leader" ? 18 : kind === "stopped" ? 4 : kind === "voter" ? 6 : 12;
        pen.fillStyle = color(`lane-${kind}`);
        pen.beginPath();
        pen.roundRect(x, middle - tall / 2, Math.max(1, end - x - 1), tall, 3);
        pen.fill();
        if (kind === "leader" && end - x > 60) { pen.fillStyle = color("on-lead"); pen.fillText(role === "active" ? "active" : "leader", x + 8, middle + 0.5); }
      });
    });
    for (const note of seen.notes) {
      const x = at(note.ago_ms);
      if (x < label || !["fault", "election"].includes(note.kind)) continue;
      pen.strokeStyle = color(note.kind === "fault" ? "bad" : "accent");
      pen.setLineDash(note.kind === "fault" ? [] : [4, 3]);
      pen.beginPath();
      pen.moveTo(x, 4);
      pen.lineTo(x, height - AXIS);
      pen.stroke();
      pen.setLineDash([]);
    }
  }

  const still = window.matchMedia("(prefers-reduced-motion: reduce)");
  const step = () => { if (ended) return; if (!still.matches) paint(); frame = requestAnimationFrame(step); };
  frame = requestAnimationFrame(step);
  if (!session.local) {
    root.replaceChildren(h("h1", {}, "Replication at work"), notice("This page disturbs the nodes of a local cluster. Start one with `moldau cluster start`, then `moldau console` in the same directory.", "warn"));
    return () => { ended = true; };
  }
  const stop = live("timeline", {}, (document) => { seen = document; lost = ""; arrived = performance.now(); draw(); }, (text) => { lost = text; draw(); }, true);
  return () => { ended = true; cancelAnimationFrame(frame); stop(); };
}
