// Pages that show one live document each: `question` is asked again and again, `view` turns its answer into elements.
import { badge, byteRate, bytes, duration, explain, fact, h, link, more, notes, notice, number, rate, session, short, table, when } from "./dom.js";
import { bytesChart, recordsChart, share } from "./charts.js";

const VERDICTS = {
  healthy: ["All clients are served, and every replica is in sync.", "good"],
  degraded: ["All clients are served, but one more failure may stop some of them.", "warn"],
  failing: ["Some clients are not served now.", "bad"],
};
const KINDS = {
  "no-quorum-leader": "No controller leads", offline: "Partition without a leader", "under-min-isr": "Refuses acks=all",
  "voter-down": "Controller is down", "voter-lags": "Controller lags", "broker-down": "Broker is down", "leader-silent": "Leader does not answer", "broker-silent": "Broker does not answer", "log-dir-failed": "Log directory failed", "log-dir-nearly-full": "Disk is nearly full", "under-replicated": "Replica out of sync",
};

function overview(seen) {
  const [sentence, kind] = VERDICTS[seen.verdict];
  const shown = seen.problems.slice(0, 20);
  return [
    h("section", { class: `verdict ${kind}`, "aria-live": "polite" },
      h("h1", {}, `The cluster is ${seen.verdict}.`), h("p", {}, sentence)),
    shown.length ? h("section", { class: "card" }, h("h2", {}, `${number(seen.problem_count)} ${seen.problem_count === 1 ? "problem" : "problems"}, the most serious first`),
      h("ul", { class: "problems" }, shown.map((problem) => h("li", {}, badge(KINDS[problem.kind] ?? problem.kind, ["no-quorum-leader", "offline", "under-min-isr", "leader-silent"].includes(problem.kind) ? "bad" : "warn"), h("span", {}, h("strong", {}, problem.subject), " ", problem.detail)))),
      seen.problem_count > shown.length ? h("p", { class: "quiet" }, `and ${number(seen.problem_count - shown.length)} more`) : null) : null,
    session.local ? h("a", { class: "card invite", href: "#/replication" }, h("strong", {}, "New here? See replication at work."), h("span", {}, "Kill a broker and watch another one take over, write by write.")) : null,
    h("section", { class: "facts" },
      fact("Brokers", number(seen.brokers)),
      fact("Controllers", number(seen.voters), seen.controller < 0 ? "none leads" : `${seen.controller} leads`),
      fact("Topics", number(seen.topics), `and ${seen.internal_topics} internal`),
      fact("Partitions", number(seen.partitions)),
      fact("Replicas in sync", `${number(seen.in_sync)} of ${number(seen.replicas)}`),
      seen.refused_logins === null ? null : fact("Refused logins", number(seen.refused_logins), "since the nodes started")),
    h("section", { class: "pair" }, h("div", { class: "card" }, recordsChart(seen.rates, rate)), h("div", { class: "card" }, bytesChart(seen.rates, byteRate))),
    h("section", { class: "card" }, h("h2", {}, "Busiest topics"),
      table("Busiest topics", [
        ["Topic", (row) => h("a", { href: link("topic", { name: row.topic }) }, row.topic)],
        ["Records", (row) => rate(row.records), "num"], ["Bytes", (row) => byteRate(row.bytes), "num"],
      ], seen.busiest, "No topic has received records in the last seconds.")),
    h("p", { class: "quiet" }, `Cluster ${seen.cluster_id}`),
  ];
}

function brokers(seen) {
  const most = Math.max(1, ...seen.rows.map((row) => row.leads));
  return [h("h1", {}, "Brokers"), explain("Brokers hold the partitions. A broker leads some of them: clients write to and read from the leader, and the other replicas copy it."), notes(seen.notes),
    table("Brokers", [
      ["Broker", (row) => row.state === "up" ? h("a", { href: link("configuration", { kind: "broker", name: row.node }), "aria-label": `Broker ${row.node}: configuration` }, row.node) : row.node], ["State", (row) => badge(row.state, row.state === "up" ? "good" : "bad")],
      ["Address", (row) => h("code", {}, row.address ?? "–")], ["Rack", (row) => row.rack ?? "–", "wide"],
      ["Leads", (row) => share(row.leads, most, number(row.leads))], ["Preferred", (row) => number(row.preferred), "num wide"], ["Replicas", (row) => number(row.replicas), "num"],
      ["Out of sync", (row) => row.out_of_sync ? badge(number(row.out_of_sync), "warn") : "0", "num"], ["Bytes", (row) => bytes(row.bytes), "num"],
      ...(seen.rows.some((row) => row.refused_logins !== null) ? [["Refused logins", (row) => row.refused_logins === null ? "–" : number(row.refused_logins), "num"]] : []),
      ["Log directories", (row) => (row.log_dirs ?? []).map((each) => h("div", {}, h("code", {}, each.path), ...(each.is_cordoned ? [badge("cordoned", "warn")] : []), each.state !== "online" ? badge(each.state, "bad") : each.is_nearly_full ? badge(`${bytes(each.usable_bytes)} of ${bytes(each.total_bytes)} free`, "warn") : h("div", { class: "quiet" }, `${bytes(each.usable_bytes)} of ${bytes(each.total_bytes)} free`))), "wide paths"],
    ], seen.rows, "No broker is registered.")];
}

function controllers(seen) {
  return [h("h1", {}, "Controllers"), explain("The controllers keep the metadata log: topics, leaders, in-sync replicas, rights. One of them leads; a change counts when a majority of the voters has it. Brokers follow the log as observers."),
    seen.leader < 0 ? notice("No controller leads: no leader is elected and no topic changes until one does.", "bad") : null,
    h("section", { class: "facts" }, fact("Leader", seen.leader < 0 ? "none" : seen.leader), fact("Epoch", seen.leader < 0 ? "–" : number(seen.epoch)), fact("High watermark", seen.leader < 0 ? "–" : number(seen.high_watermark))),
    table("Controllers and observers", [
      ["Node", (row) => row.node], ["Role", (row) => [badge(row.role, row.role === "leader" ? "good" : ""), row.is_silent ? badge("does not answer", "bad") : null]], ["Address", (row) => h("code", {}, row.address ?? "–")],
      ["Log end offset", (row) => number(row.log_end_offset), "num"], ["Lag", (row) => row.lag > 1000 ? badge(number(row.lag), "warn") : number(row.lag), "num"],
      ["Last fetch", (row) => when(row.last_fetch_ms), "wide"], ["Last caught up", (row) => when(row.last_caught_up_ms), "wide"],
    ], seen.rows, "Without a leader nothing is known of the voters: look at their logs."), more(seen)];
}

function topics(seen) {
  return [notes(seen.notes),
    table("Topics", [
      ["Topic", (row) => h("a", { href: link("topic", { name: row.topic }) }, row.topic)],
      ["State", (row) => row.offline ? badge(`${row.offline} offline`, "bad") : row.under_replicated ? badge(`${row.under_replicated} out of sync`, "warn") : badge("in sync", "good")],
      ["Partitions", (row) => number(row.partitions), "num"], ["Replicas", (row) => number(row.replication), "num wide"],
      ["Records", (row) => number(row.records), "num"], ["On disk", (row) => bytes(row.bytes), "num"],
      ["Records/s", (row) => short(row.records_per_s), "num"], ["Bytes/s", (row) => byteRate(row.bytes_per_s), "num wide"],
    ], seen.rows, h("span", {}, "There is no such topic. Create one with ", h("code", {}, "moldau topics create NAME --partitions 3"), ".")), more(seen)];
}

const nodeList = (nodes, marked) => nodes === null ? "–" : nodes.length ? h("span", { class: "nodes" }, nodes.map((node) => h("span", { class: marked(node) }, node))) : "none";

function topic(seen) {
  return [
    h("nav", { class: "crumbs", "aria-label": "Path" }, h("a", { href: "#/topics" }, "Topics"), " / ", seen.topic),
    h("h1", {}, seen.topic),
    h("p", { class: "actions" },
      h("a", { class: "button", href: link("messages", { topic: seen.topic }) }, "Browse messages"),
      session.read_only ? null : h("a", { class: "button", href: link("produce", { topic: seen.topic }) }, "Produce"),
      h("a", { class: "button", href: link("configuration", { kind: "topic", name: seen.topic }) }, "Configuration")),
    notes(seen.notes),
    h("section", { class: "facts" },
      fact("Partitions", number(seen.partitions)), fact("Replicas of each", number(seen.replication), seen.min_isr === null ? "" : `min.insync.replicas ${seen.min_isr}`),
      fact("Records", number(seen.records)), fact("On disks of leaders", bytes(seen.bytes))),
    h("section", { class: "pair" }, h("div", { class: "card" }, recordsChart(seen.rates, rate)), h("div", { class: "card" }, bytesChart(seen.rates, byteRate))),
    h("h2", {}, "Partitions"),
    explain("The leader serves a partition's clients. The in-sync replicas have every acknowledged record, so each of them may become leader. Eligible replicas left the in-sync set but still have all acknowledged records."),
    table("Partitions", [
      ["Partition", (row) => row.partition],
      ["Leader", (row) => row.leader < 0 ? badge("none", "bad") : h("span", { class: "nodes" }, h("span", { class: "leads" }, row.leader))],
      ["Replicas", (row) => nodeList(row.replicas, (node) => node === row.leader ? "leads" : row.isr.includes(node) ? "synced" : "behind")],
      ["In sync", (row) => row.isr.length < row.replicas.length ? badge(`${row.isr.length} of ${row.replicas.length}`, "warn") : `${row.isr.length} of ${row.replicas.length}`],
      ["Eligible", (row) => nodeList(row.elr, () => "synced")],
      ["Start offset", (row) => number(row.start_offset), "num"], ["End offset", (row) => number(row.end_offset), "num"],
      ["On disk", (row) => bytes(row.bytes), "num"], ["Epoch", (row) => number(row.leader_epoch), "num wide"],
    ], seen.rows, "The topic has no partitions."), more(seen),
    h("h2", {}, "Configuration that was set"),
    seen.configs === null ? notice("The configuration is not shown; the reason stands above.", "warn") : table("Configuration that was set", [["Key", (row) => h("code", {}, row.key)], ["Value", (row) => h("code", {}, row.value ?? "hidden")], ["Source", (row) => row.source]], seen.configs, "All keys have their defaults."),
  ];
}

const GROUP_STATES = { Stable: "good", Empty: "", PreparingRebalance: "warn", CompletingRebalance: "warn", Assigning: "warn", Reconciling: "warn", Dead: "bad" };

function groups(seen) {
  return [notes(seen.notes),
    table("Groups", [
      ["Group", (row) => h("a", { href: link("group", { name: row.group }) }, row.group)], ["State", (row) => badge(row.state, GROUP_STATES[row.state] ?? "")],
      ["Protocol", (row) => row.type], ["Partitions", (row) => number(row.partitions), "num"], ["Lag", (row) => number(row.lag), "num"],
    ], seen.rows, "No group has committed offsets or has members."), more(seen)];
}

function group(seen) {
  const most = Math.max(1, ...seen.rows.map((row) => row.lag ?? 0));
  return [
    h("nav", { class: "crumbs", "aria-label": "Path" }, h("a", { href: "#/groups" }, "Groups"), " / ", seen.group), h("h1", {}, seen.group), notes(seen.notes),
    h("section", { class: "facts" }, fact("State", seen.state), fact("Lag", number(seen.lag), "records not consumed yet"), fact("Members", number(seen.member_count), seen.protocol), fact("Coordinator", `broker ${seen.coordinator}`, seen.type)),
    h("h2", {}, "Members"),
    table("Members", [["Client", (row) => row.client], ["Host", (row) => row.host], ["Partitions", (row) => number(row.partitions), "num"], ["Member", (row) => h("code", {}, row.instance ?? row.member), "wide"]], seen.members, "The group has no members: it only has committed offsets."),
    h("h2", {}, "Partitions"),
    table("Partitions of the group", [
      ["Partition", (row) => h("a", { href: link("topic", { name: row.topic }) }, `${row.topic}-${row.partition}`)],
      ["Committed", (row) => number(row.committed), "num"], ["End offset", (row) => number(row.end_offset), "num"],
      ["Lag", (row) => row.lag === null ? "–" : share(row.lag, most, number(row.lag))], ["Consumer", (row) => row.client ?? "none"],
    ], seen.rows, "The group has no partitions."), more(seen)];
}

function transactions(seen) {
  return [h("h1", {}, "Transactions"), explain("A transactional producer writes to several partitions at once. While its transaction is open, consumers that read committed records wait at its first record."), notes(seen.notes),
    table("Transactions", [
      ["Transactional id", (row) => h("code", {}, row.transactional_id)], ["State", (row) => badge(row.state, row.state === "Ongoing" ? "warn" : "")],
      ["Open for", (row) => row.age_ms !== null && row.timeout_ms !== null && row.age_ms > row.timeout_ms ? badge(duration(row.age_ms), "bad") : duration(row.age_ms), "num"],
      ["Timeout", (row) => duration(row.timeout_ms), "num"], ["Partitions", (row) => row.partitions.join(", ") || "–"],
      ["Producer id", (row) => number(row.producer_id), "num wide"], ["Coordinator", (row) => row.coordinator, "num wide"],
    ], seen.rows, "No producer has used transactions."), more(seen)];
}

function acls(seen) {
  return [notes(seen.notes),
    table("Access control lists", [
      ["Principal", (row) => row.principal], ["Permission", (row) => badge(row.permission, row.permission === "allow" ? "good" : "bad")], ["Operation", (row) => row.operation],
      ["Resource", (row) => `${row.resource} ${row.name}`], ["Pattern", (row) => row.pattern, "wide"], ["Host", (row) => row.host, "wide"],
    ], seen.rows, "There are no entries."), more(seen)];
}

function quotas(seen) {
  return [notes(seen.notes),
    table("Quotas", [["Entity", (row) => row.entity], ["Key", (row) => h("code", {}, row.key)], ["Value", (row) => row.key.endsWith("_byte_rate") ? byteRate(row.value) : number(row.value), "num"]],
      seen.rows, seen.notes.length ? "Nothing to show." : "No quotas are set: no client is slowed down."), more(seen)];
}

const of = (question, view, more = {}) => ({ question, view, ...more });
export const PAGES = {
  overview: of("overview", overview, { title: "Overview" }),
  brokers: of("brokers", brokers, { title: "Brokers" }),
  controllers: of("controllers", controllers, { title: "Controllers" }),
  topics: of("topics", topics, { title: "Topics", filter: "Name contains", help: "A topic is a named log, divided into partitions. Each partition has replicas on several brokers.", box: ["internal", "Internal topics"] }),
  topic: of("topic", topic, { title: "Topic" }),
  groups: of("groups", groups, { title: "Groups", filter: "Group contains", help: "The consumers of a group share the partitions of their topics. The lag is the number of records that the group has not committed yet." }),
  group: of("group", group, { title: "Group" }),
  transactions: of("transactions", transactions, { title: "Transactions" }),
  acls: of("acls", acls, { title: "Access control", filter: "Principal or resource contains", help: "Access control lists say which principal may do what to which resource." }),
  quotas: of("quotas", quotas, { title: "Quotas", filter: "Entity contains", help: "Quotas bound the bytes and the requests of users and client ids." }),
};
