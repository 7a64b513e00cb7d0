// The lists of nodes, shared crawls and rules, and what may be done with one of them.

import { count, dash, limit, moment, nameOf, number, rate, seconds, withoutLetters, write } from "./draw.js";
import { changed, confirm } from "./actions.js";
import { list } from "./rows.js";

const [nodes, crawls, rules] = ["#nodes", "#crawls", "#rules"].map((id) => {
  const section = document.querySelector(id);
  return { section, answer: section.querySelector(".answer"), ...list(section.querySelector("table")) };
});
const opener = document.querySelector("#show-nodes");

opener.addEventListener("click", () => {
  nodes.section.hidden = !nodes.section.hidden;
  opener.setAttribute("aria-expanded", String(!nodes.section.hidden));
});

/** Say what was done, and look how things are now. */
function say({ section, answer }, name, text) {
  answer.replaceChildren(nameOf(name), ` ${text}`);
  section.querySelector("h2").focus();
  changed();
}

// Nodes -----------------------------------------------------------------------------------------

export function showNodes(state) {
  const { nodes: rows, more_nodes: more, lease } = state;
  const shown = rows.map((node) => ({
    name: node.node,
    cells: [
      number(node.held), number(node.waiting), number(node.scopes), seconds(node.oldest),
      seconds(node.longest_wait), seconds(node.lease_left),
    ],
    buttons: [["Evict…", () => evict(node, lease, state.totals.silent_for)]],
  }));
  const others = rows.length + more < state.totals.nodes ? ` that match, of ${number(state.totals.nodes)}` : "";
  const caption = rows.length
    ? `${count(rows.length, "node")}${more ? `, and ${number(more)} more` : ""}${others}; those with most waiting requests first`
    : "No node holds a permit or waits.";
  nodes.show(shown, caption);
}

function evict(node, lease, silentFor) {
  // While no node calls, the leases' clock stands still.
  const since = Math.max(lease - node.lease_left, silentFor ?? 0);
  const life = since < lease / 3
    ? `It renewed its leases ${seconds(since)} ago, so it may well be alive: then its requests exceed the limit for a while.`
    : `It has renewed no lease for ${seconds(since)}: it seems to be dead.`;
  confirm({
    title: "Evict this node?",
    name: node.node,
    text: `holds ${count(node.held, "permit")} and has ${count(node.waiting, "waiting request")}, at ${count(node.scopes, "site")}. ${life}`,
    yes: "Evict",
    action: { action: "evict", name: node.node },
    done: ({ permits, requests }) => say(
      nodes, node.node, `gave back ${count(permits, "permit")} and dropped ${count(requests, "waiting request")}.`,
    ),
  });
}

// Shared crawls ---------------------------------------------------------------------------------

const BADGES = { running: "open", stopped: "backoff", ended: "idle" };

export function showCrawls(state) {
  const { crawls: rows, more_crawls: more } = state;
  // Of a server that is away the page has said so already.
  const problem = state.problem ? "" : state.crawls_problem ?? "";
  const line = crawls.section.querySelector(".problem");
  write(line, problem && `Away since ${moment(new Date(1000 * state.crawls_problem_since))}. ${problem}`);
  line.hidden = !problem;
  crawls.section.hidden = !rows.length && !problem && !crawls.answer.textContent;
  const shown = rows.map((crawl) => ({
    name: crawl.name,
    badge: [crawl.ended_at ? `ended ${seconds(Date.now() / 1000 - crawl.ended_at)} ago` : crawl.state, BADGES[crawl.state]],
    cells: ["nodes", "sites", "queued", "taken", "pages", "failed", "seen", "set_aside"].map((part) => number(crawl[part])),
    buttons: [
      ["Retry…", () => retry(crawl), !(crawl.set_aside + crawl.failed)],
      ["Drop…", () => drop(crawl)],
    ],
  }));
  const running = rows.filter((crawl) => crawl.state === "running").length;
  const caption = rows.length
    ? `${count(rows.length, "crawl")}${more ? `, and ${number(more)} more` : ""}; ${running} running`
    : "There are no crawls.";
  crawls.show(shown, caption);
}

function retry(crawl) {
  const ended = crawl.state === "ended" ? " The crawl has ended: the next node continues it." : "";
  const what = [
    crawl.failed && `${count(crawl.failed, "request")} that brought no page`,
    crawl.set_aside && `${count(crawl.set_aside, "request")} set aside`,
  ].filter(Boolean).join(", and ");
  confirm({
    title: "Retry failed requests?",
    name: crawl.name,
    text: `has ${what}. Retry puts them back into the queues.${ended}`,
    yes: "Retry",
    action: { action: "retry", name: crawl.name },
    done: ({ requests }) => say(crawls, crawl.name, `has ${count(requests, "request")} queued again.`),
  });
}

function drop(crawl) {
  const rest = crawl.state === "ended"
    ? "Its end is forgotten: the next node starts it over."
    : `It ends for ${count(crawl.nodes, "node")}, and ${count(crawl.queued + crawl.taken, "request")} queued or taken are lost.`;
  confirm({
    title: "Drop this crawl?",
    name: crawl.name,
    text: `is forgotten, with the ${count(crawl.seen, "request")} that it has seen. ${rest}`,
    yes: "Drop",
    action: { action: "drop", name: crawl.name },
    done: () => say(crawls, crawl.name, "is dropped."),
  });
}

// Rules -----------------------------------------------------------------------------------------

export function showRules({ rules: rows, more_rules: more }) {
  rules.section.hidden = !rows.length;
  const shown = rows.map((rule) => ({
    name: rule.name,
    cells: [
      rule.limit === null && !rule.unlimited
        ? "from settings"
        : `${limit(rule.limit, rule.unlimited)}${rule.adaptive ? ", adaptive" : ""}`,
      rule.delay === null ? "from settings" : seconds(rule.delay),
      rate(rule.rate ?? "from settings", rule.burst),
      rule.paused ? "paused" : rule.paused === false ? "resumed" : dash,
      withoutLetters(rule.set_by ?? ""),
    ],
  }));
  const others = more ? ` These are the first; there are ${number(more)} more.` : "";
  rules.show(shown, `They override the nodes’ settings.${others}`);
}
