// The lists of nodes, shared crawls and rules.

import { count, dash, delay, limit, moment, number, rate, seconds, withoutLetters, write } from "./draw.js";
import { list } from "./rows.js";

const [nodes, crawls, rules] = ["#nodes", "#crawls", "#rules"].map((id) => {
  const section = document.querySelector(id);
  return { section, ...list(section.querySelector("table")) };
});
const opener = document.querySelector("#show-nodes");

opener.addEventListener("click", () => {
  nodes.section.hidden = !nodes.section.hidden;
  opener.setAttribute("aria-expanded", String(!nodes.section.hidden));
});

// Nodes -----------------------------------------------------------------------------------------

export function showNodes(state) {
  const { nodes: rows, more_nodes: more } = state;
  const shown = rows.map((node) => ({
    name: node.node,
    cells: [
      number(node.held), number(node.waiting), number(node.scopes), seconds(node.oldest),
      seconds(node.longest_wait), seconds(node.lease_left),
    ],
  }));
  const others = rows.length + more < state.totals.nodes ? ` that match, of ${number(state.totals.nodes)}` : "";
  const caption = rows.length
    ? `${count(rows.length, "node")}${more ? `, and ${number(more)} more` : ""}${others}; those with most waiting requests first`
    : "No node holds a permit or waits.";
  nodes.show(shown, caption);
}

// Shared crawls ---------------------------------------------------------------------------------

const BADGES = { running: "open", stopped: "backoff", ended: "idle" };

export function showCrawls(state) {
  const { crawls: rows, more_crawls: more } = state;
  // The page's own alert already names a server that is away.
  const problem = state.problem ? "" : state.crawls_problem ?? "";
  const line = crawls.section.querySelector("p");
  const since = state.crawls_problem_since; // null: the server answers, and refuses
  write(line, problem && since !== null ? `Away since ${moment(new Date(1000 * since))}. ${problem}` : problem);
  line.className = since === null ? "soft" : "problem";
  line.hidden = !problem;
  crawls.section.querySelector("table").hidden = !rows.length;
  crawls.section.hidden = !rows.length && !problem;
  const shown = rows.map((crawl) => ({
    name: crawl.name,
    badge: [crawl.ended_at ? `ended ${seconds(Date.now() / 1000 - crawl.ended_at)} ago` : crawl.state, BADGES[crawl.state]],
    cells: ["nodes", "sites", "queued", "in_flight", "pages", "failed", "seen", "dead_letters"].map((part) => number(crawl[part])),
  }));
  const running = rows.filter((crawl) => crawl.state === "running").length;
  crawls.show(shown, `${count(rows.length, "crawl")}${more ? `, and ${number(more)} more` : ""}; ${running} running`);
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
      rule.delay === null ? "from settings" : delay(rule.delay, rule.jitter),
      rate(rule.rate ?? "from settings", rule.burst),
      rule.paused ? "paused" : rule.paused === false ? "resumed" : dash,
      withoutLetters(rule.set_by ?? ""),
    ],
  }));
  const others = more ? ` These are the first; there are ${number(more)} more.` : "";
  rules.show(shown, `They override the nodes’ settings.${others}`);
}
