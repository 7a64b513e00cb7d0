// The table of scopes: a row each, updated in place, and the details of one of them.

import {
  POINTS, dash, delay, draw, element, limit, nameOf, number, rate, seconds, sparkline, starts, withoutLetters, write,
} from "./draw.js";
import { changed, changeButtons } from "./actions.js";
import { arrange, labelsOf, list, rowOf } from "./rows.js";

const HOUR = [["starts_per_second", "Starts/s", starts], ["longest_wait", "Longest wait", seconds], ["backoff", "Backoff", seconds]];
const LAST_HOUR_MINUTES = 60;
const SAMPLE_INTERVAL_MS = 800; // between two points of a sparkline, at least
const HOLD_MS = 4000; // rows keep their order for this long after the pointer has moved over one

const table = document.querySelector("#scopes");
const body = table.tBodies[0];
const columns = table.dataset.columns.split(" ").slice(1);
const rows = new Map(); // a scope's id to its row
let opened = null; // the open scope's id and row, its row of details, and the list of nodes there
let touched = -HOLD_MS;
let ticked = -SAMPLE_INTERVAL_MS;
let ticks = true; // whether this look adds a point to the sparklines

body.addEventListener("pointermove", () => { touched = performance.now(); });

export function openedId() {
  return opened ? opened.id : "";
}

export function openedName() {
  return opened ? opened.row.name : "";
}

/** Open a scope and show it, also if it is not in the list. */
export function open(scope) {
  if (!rows.has(scope.id)) {
    rows.set(scope.id, make(scope));
    body.append(rows.get(scope.id).tr);
    update(rows.get(scope.id), scope);
  }
  if (openedId() !== scope.id) toggle(scope.id);
  rows.get(scope.id).tr.scrollIntoView({ block: "center" });
}

/** Rows keep their order while the pointer moves over them, or one of them has the focus. */
export function isHeld() {
  return body.contains(document.activeElement) || performance.now() - touched < HOLD_MS;
}

/** Let the order change: the user has just asked for another. */
export function letGo() {
  touched = -HOLD_MS;
}

export function show(scopes, details) {
  ticks = performance.now() - ticked > SAMPLE_INTERVAL_MS;
  if (ticks) ticked = performance.now();
  const wanted = new Set(scopes.map((scope) => scope.id));
  for (const [id, row] of rows) {
    if (wanted.has(id)) continue;
    if (openedId() === id && details) {
      update(row, details);
    } else if (row.tr.contains(document.activeElement) || openedId() === id) {
      unlist(row); // it stays for whoever reads it
    } else {
      row.tr.remove();
      rows.delete(id);
    }
  }
  for (const scope of scopes) {
    if (!rows.has(scope.id)) rows.set(scope.id, make(scope));
    update(rows.get(scope.id), scope);
  }
  const order = scopes.flatMap(({ id }) => [rows.get(id).tr, ...(openedId() === id ? [opened.tr] : [])]);
  arrange(body, order, isHeld());
  hideEmptyColumns();
  showDetails(details);
}

/** Hide columns without a figure in any row: names get the space. */
function hideEmptyColumns() {
  const isEmpty = (column) => [...rows.values()].every((row) => row.cells[column].cell.classList.contains("empty"));
  const hidden = Object.fromEntries(["delay", "rate", "next_start", "set_by"].map((column) => [column, isEmpty(column)]));
  hidden.next_start = hidden.delay && hidden.rate; // otherwise it would come and go
  for (const [column, isHidden] of Object.entries(hidden)) {
    table.querySelector(`thead [data-help=${column}]`).hidden = isHidden;
    for (const { cells } of rows.values()) cells[column].cell.hidden = isHidden;
  }
  if (opened) opened.tr.cells[0].colSpan = table.tHead.querySelectorAll("th:not([hidden])").length;
}

function make(scope) {
  const button = element("button", "", "scope");
  button.setAttribute("aria-expanded", "false");
  button.setAttribute("aria-controls", `details-${scope.id}`);
  button.append(nameOf(scope.scope));
  button.addEventListener("click", () => toggle(scope.id));
  const tr = rowOf(button, labelsOf(table));
  const row = { id: scope.id, name: scope.scope, tr, button, cells: {}, lines: {}, values: { held: [], starts_per_second: [] } };
  for (const [i, column] of columns.entries()) {
    const cell = tr.cells[i + 1];
    cell.className = column;
    const value = element("span");
    cell.append(value);
    if (column in row.values) {
      row.lines[column] = sparkline(column);
      cell.append(row.lines[column]);
    }
    row.cells[column] = { cell, value };
  }
  return row;
}

function update(row, scope) {
  const { lines, values } = row;
  if (ticks) {
    push(values.held, scope.held);
    if (scope.starts_per_second !== null) push(values.starts_per_second, scope.starts_per_second);
  }
  draw(lines.held, values.held, scope.limit ?? 1);
  draw(lines.starts_per_second, values.starts_per_second, 1);
  const grows = scope.limit !== null && scope.limit_max !== scope.limit;
  const most = grows ? ` (${limit(scope.limit_max, scope.limit_max === null)})` : "";
  put(row, "held", `${number(scope.held)}/${limit(scope.limit, scope.unlimited)}${most}`);
  put(row, "waiting", number(scope.waiting), !scope.waiting);
  put(row, "longest_wait", seconds(scope.longest_wait), !scope.waiting);
  put(row, "starts_per_second", starts(scope.starts_per_second), !scope.starts_per_second);
  put(row, "delay", scope.delay ? delay(scope.delay, scope.jitter) : dash, !scope.delay);
  put(row, "next_start", seconds(scope.next_start), !scope.next_start);
  put(row, "rate", rate(scope.rate, scope.burst), !scope.rate);
  const by = scope.set_by ?? scope.asked_by[0];
  put(row, "set_by", by ? withoutLetters(by) : "settings", !by);
  row.cells.set_by.cell.title = scope.set_by ?? scope.asked_by.join("\n");
  const left = scope.wait === null ? "" : `, ${seconds(scope.wait)}`;
  put(row, "state", scope.state + left, scope.state === "idle");
  row.cells.state.value.className = `badge ${scope.kind} ${scope.state}`;
  row.cells.state.cell.title = scope.why ?? "";
}

function put(row, column, text, isEmpty = false) {
  const { cell, value } = row.cells[column];
  write(value, text);
  cell.classList.toggle("empty", isEmpty);
}

function push(values, value) {
  values.push(value);
  if (values.length > POINTS) values.shift();
}

function unlist(row) {
  for (const column of columns) put(row, column, dash, true);
  put(row, "state", "not listed", true);
  row.cells.state.value.className = "badge idle";
}

// Details ---------------------------------------------------------------------------------------

function toggle(id) {
  const again = openedId() === id;
  if (opened) {
    opened.tr.remove();
    opened.row.button.setAttribute("aria-expanded", "false");
    opened = null;
  }
  if (!again) {
    const row = rows.get(id);
    const tr = document.querySelector("#details").content.firstElementChild.cloneNode(true);
    tr.id = `details-${id}`;
    row.tr.after(tr);
    opened = { id, row, tr, nodes: list(tr.querySelector("table")) };
    tr.querySelector(".hour").append(...HOUR.map(([name]) => makeChart(name)));
    tr.firstElementChild.append(changeButtons(() => row.name, row.name));
    row.button.setAttribute("aria-expanded", "true");
  }
  changed();
}

function showDetails(details) {
  if (!opened) return;
  const isHere = details?.id === opened.id;
  const { nodes, jobs, more_nodes: more } = isHere ? details : { nodes: [], jobs: [], more_nodes: 0 };
  const shares = jobs.map((one) => `${one.job || "no job"} ${number(one.held)} held, ${number(one.waiting)} waiting`);
  write(opened.tr.querySelector(".jobs"), jobs.length ? `Shared by jobs: ${shares.join("; ")}` : "");
  const last = details?.backoff_last ? `The last backoff lasted ${seconds(details.backoff_last)}.` : "";
  const learned = details?.learned ? `Learned from its answers: ${details.learned}.` : "";
  write(opened.tr.querySelector(".why"), isHere ? [details.why, last, learned].filter(Boolean).join(" ") : "");
  if (isHere) showHour(details.history);
  const order = nodes.some((node) => node.waiting) ? ", those that wait first, in the order of the queue" : "";
  const shown = nodes.map((node) => ({
    name: node.node,
    cells: [
      number(node.held), seconds(node.oldest), number(node.waiting), seconds(node.longest_wait),
      seconds(node.lease_left), node.failures ? number(node.failures) : "–",
    ],
  }));
  opened.nodes.show(shown, `Nodes${order}: ${nodes.length}${more ? `, and ${number(more)} more` : ""}`);
}

function makeChart(name) {
  const figure = element("figure");
  figure.title = document.querySelector("#help-hour").textContent;
  const axis = element("p");
  axis.append(element("span"), element("span", "now"));
  figure.append(element("figcaption"), sparkline(name), axis);
  return figure;
}

function showHour(history) {
  HOUR.forEach(([name, label, format], i) => {
    const [caption, line, axis] = opened.tr.querySelectorAll("figure")[i].children;
    const values = history[name].map((value) => value ?? 0);
    const minutes = values.length === 1 ? "minute" : `${values.length} minutes`;
    write(caption, `${label}, last ${values.length === LAST_HOUR_MINUTES ? "hour" : minutes}: at most ${format(Math.max(...values))}`);
    write(axis.firstChild, `${values.length} min ago`);
    if (values.length === 1) values.push(values[0]); // one point is no line
    draw(line, values, 1, values.length);
  });
}
