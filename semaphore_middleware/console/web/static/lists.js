// The lists of nodes and of shared crawls, and what may be done with one of them.

import { arrange, count, element, moment, nameOf, number, rowOf, seconds, write } from "./draw.js";
import { isUnlocked } from "./actions.js";
import { confirm } from "./confirm.js";

const nodes = list(document.querySelector("#nodes"));
const crawls = list(document.querySelector("#crawls"));
const opener = document.querySelector("#show-nodes");
let changed = () => {};

export function onChange(callback) {
  changed = callback;
}

opener.addEventListener("click", () => {
  nodes.section.hidden = !nodes.section.hidden;
  opener.setAttribute("aria-expanded", String(!nodes.section.hidden));
});

// Nodes -----------------------------------------------------------------------------------------

export function showNodes(state) {
  const { nodes: rows, more_nodes: more, lease } = state;
  const shown = rows.map((node) => ({
    name: node.node,
    cells: [
      number(node.held), number(node.waiting), number(node.scopes), seconds(node.oldest),
      seconds(node.longest_wait), seconds(Math.max(0, node.lease_left)),
    ],
    buttons: [["Evict…", () => evict(node, lease)]],
  }));
  const others = rows.length + more < state.totals.nodes ? ` that match, of ${number(state.totals.nodes)}` : "";
  const caption = rows.length
    ? `${count(rows.length, "node")}${more ? `, and ${number(more)} more` : ""}${others}; those with most waiting requests first`
    : "No node holds a permit or waits.";
  nodes.show(shown, caption);
}

function evict(node, lease) {
  const since = lease - node.lease_left;
  const life = since < lease / 3
    ? `It renewed its leases ${seconds(since)} ago, so it may well be alive: then its requests go on for a while, on top of what others may start.`
    : `It has renewed no lease for ${seconds(since)}: it seems to be dead.`;
  confirm({
    title: "Evict this node?",
    name: node.node,
    text: `holds ${count(node.held, "permit")} and has ${count(node.waiting, "waiting request")}, at ${count(node.scopes, "site")}. ${life}`,
    yes: "Evict",
    action: { action: "evict", name: node.node },
    done: ({ permits, requests }) => nodes.say(
      node.node, `gave back ${count(permits, "permit")} and dropped ${count(requests, "waiting request")}.`,
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
  crawls.section.hidden = !rows.length && !problem && !crawls.isUsed();
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
    : "No crawl is there.";
  crawls.show(shown, caption);
}

function retry(crawl) {
  const ended = crawl.state === "ended" ? " The crawl has ended: the next node that is started goes on with it." : "";
  const what = [
    crawl.failed && `${count(crawl.failed, "request")} that brought no page`,
    crawl.set_aside && `${count(crawl.set_aside, "request")} that three nodes have failed with`,
  ].filter(Boolean).join(", and ");
  confirm({
    title: "Queue again what has failed?",
    name: crawl.name,
    text: `has ${what}. Now nodes get them again.${ended}`,
    yes: "Retry",
    action: { action: "retry", name: crawl.name },
    done: ({ requests }) => crawls.say(crawl.name, `has ${count(requests, "request")} queued again.`),
  });
}

function drop(crawl) {
  const rest = crawl.state === "ended"
    ? "That it has ended is forgotten: a node that is started begins it anew."
    : `It ends for ${count(crawl.nodes, "node")}, and ${count(crawl.queued + crawl.taken, "request")} queued or taken are lost.`;
  confirm({
    title: "Drop this crawl?",
    name: crawl.name,
    text: `is forgotten, with the ${count(crawl.seen, "request")} that it has seen. ${rest}`,
    yes: "Drop",
    action: { action: "drop", name: crawl.name },
    done: () => crawls.say(crawl.name, "is dropped."),
  });
}

// A table whose rows are kept by their names ----------------------------------------------------

function list(section) {
  const table = section.querySelector("table");
  const body = table.tBodies[0];
  const labels = [...table.tHead.rows[0].cells].map((th) => th.textContent);
  const rows = new Map();

  /** Rows stand still while somebody is about to press a button in one. */
  const isHeld = () => table.matches(":hover") || table.contains(document.activeElement);

  const make = (item) => {
    const tr = rowOf(nameOf(item.name));
    for (const label of labels.slice(1)) {
      const cell = element("td");
      cell.setAttribute("role", "cell");
      cell.dataset.label = label.toLowerCase();
      tr.append(cell);
    }
    const last = tr.lastElementChild;
    last.className = "locked";
    last.hidden = !isUnlocked();
    const row = { tr, buttons: [], badge: null };
    if (item.badge) {
      row.badge = element("span");
      tr.cells[1].append(row.badge);
    }
    for (const [i, [word]] of item.buttons.entries()) {
      const button = element("button", word, "plain");
      button.type = "button";
      button.setAttribute("aria-label", `${word.replace("…", "")} ${item.name}`);
      button.addEventListener("click", () => row.item.buttons[i][1]());
      row.buttons.push(button);
      last.append(button, " ");
    }
    return row;
  };

  const update = (row, item) => {
    row.item = item;
    const first = item.badge ? 2 : 1;
    if (item.badge) {
      write(row.badge, item.badge[0]);
      row.badge.className = `badge ${item.badge[1]}`;
    }
    item.cells.forEach((text, i) => write(row.tr.cells[first + i], text));
    item.buttons.forEach(([, , isOff], i) => { row.buttons[i].disabled = Boolean(isOff); });
  };

  const show = (items, caption) => {
    write(table.caption, caption);
    const wanted = new Set(items.map((item) => item.name));
    for (const [name, { tr }] of rows) {
      if (wanted.has(name)) continue;
      if (tr.contains(document.activeElement)) section.querySelector("h2").focus();
      tr.remove();
      rows.delete(name);
    }
    for (const item of items) {
      if (!rows.has(item.name)) rows.set(item.name, make(item));
      update(rows.get(item.name), item);
    }
    arrange(body, items.map((item) => rows.get(item.name).tr), isHeld());
  };

  const answer = section.querySelector(".answer");
  const say = (name, text) => {
    answer.replaceChildren(nameOf(name), ` ${text}`);
    section.querySelector("h2").focus();
    changed();
  };
  return { section, show, say, isUsed: () => Boolean(answer.textContent) };
}
