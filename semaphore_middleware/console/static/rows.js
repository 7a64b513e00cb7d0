// Tables: their heads, and rows that are kept by their names and updated in place.

import { element, nameOf, write } from "./draw.js";

// A column's name and its help are written once, in the page's legend; figures have their help there, too.
for (const root of [document, ...[...document.querySelectorAll("template")].map((one) => one.content)]) {
  for (const table of root.querySelectorAll("[data-columns]")) makeHead(table);
  for (const part of root.querySelectorAll("[data-help]")) part.title = helpOf(part.dataset.help).textContent;
}

function helpOf(column) {
  return document.querySelector(`#help-${column}`);
}

/** The roles keep it a table for screen readers, even if rows are laid out as cards. */
function makeHead(table) {
  table.role = "table";
  const row = table.createTHead().insertRow();
  for (const column of table.dataset.columns.split(" ")) {
    const term = helpOf(column).previousElementSibling;
    const th = element("th", term.dataset.head ?? term.textContent);
    Object.assign(th, { role: "columnheader", scope: "col" });
    th.dataset.help = column;
    row.append(th);
  }
  row.role = "row";
  table.tHead.role = table.createTBody().role = "rowgroup";
}

/** A row: its head, and an empty cell for each of the labels, which cards show. */
export function rowOf(content, labels) {
  const tr = Object.assign(element("tr"), { role: "row" });
  const head = Object.assign(element("th"), { role: "rowheader", scope: "row" });
  head.append(content);
  tr.append(head);
  for (const label of labels) {
    const cell = Object.assign(element("td"), { role: "cell" });
    cell.dataset.label = label;
    tr.append(cell);
  }
  return tr;
}

export function labelsOf(table) {
  return [...table.tHead.rows[0].cells].slice(1).map((th) => th.textContent.toLowerCase());
}

/** Put rows in order, and touch only those in the wrong place. If they are held, new ones come last. */
export function arrange(body, rows, areHeld = false) {
  let next = body.firstElementChild;
  for (const tr of rows) {
    if (tr === next) next = tr.nextElementSibling;
    else if (!areHeld) body.insertBefore(tr, next);
    else if (!tr.isConnected) body.append(tr);
  }
}

/** A table of `{ name, cells, badge }`: the badge's text and class stand before the cells. */
export function list(table) {
  const rows = new Map();

  const make = ({ name, badge }) => {
    const tr = rowOf(nameOf(name), labelsOf(table));
    const row = { tr, badge: element("span") };
    if (badge) tr.cells[1].append(row.badge);
    return row;
  };

  const update = (row, { cells, badge }) => {
    if (badge) {
      write(row.badge, badge[0]);
      row.badge.className = `badge ${badge[1]}`;
    }
    cells.forEach((text, i) => write(row.tr.cells[i + (badge ? 2 : 1)], text));
  };

  const show = (items, caption) => {
    write(table.caption, caption);
    const wanted = new Set(items.map((item) => item.name));
    for (const [name, { tr }] of rows) {
      if (wanted.has(name)) continue;
      tr.remove();
      rows.delete(name);
    }
    for (const item of items) {
      if (!rows.has(item.name)) rows.set(item.name, make(item));
      update(rows.get(item.name), item);
    }
    arrange(table.tBodies[0], items.map((item) => rows.get(item.name).tr));
  };
  return { show };
}
