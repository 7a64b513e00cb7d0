// Asks the server for the state once a second, while the page is visible, and shows it.

import { dash, delay, limit, moment, number, rate, seconds, starts, withoutLetters, write } from "./draw.js";
import { allow } from "./actions.js";
import { showCrawls, showNodes, showRules } from "./lists.js";
import { isHeld, letGo, open, openedId, openedName, show } from "./table.js";

const INTERVAL_MS = 1000; // between two looks
const MAX_INTERVAL_MS = 30000; // while this page's server is away: the browser's console notes each try
const TIMEOUT_MS = 8000; // for an answer: the server itself waits for Redis for 2 s
const MAX_NEWS = 3; // scopes that one announcement names

const $ = (selector) => document.querySelector(selector);
const asked = new URLSearchParams(location.search);
let match = asked.get("match") ?? ""; // the filter's text
let page = Number(asked.get("page")) || 1; // of the scopes, if there are that many
let anchor = anchored(); // the scope named by the page's address, until it is open
let timer = 0;
let looking = null; // the look that is under way
let before = new Map(); // the scopes at the last look, for the news
let failed = 0; // failed looks in a row
let lost = ""; // the time since which the page's server has not answered
let seen = dash; // the time of the state shown

async function look() {
  clearTimeout(timer);
  looking?.abort();
  const mine = (looking = new AbortController());
  setTimeout(() => mine.abort(), TIMEOUT_MS);
  const query = new URLSearchParams({ match, page, open: anchor || openedId() });
  try {
    const answer = await fetch(`state.json?${query}`, { signal: mine.signal });
    if (!answer.ok) throw new Error(answer.statusText);
    display(await answer.json());
  } catch {
    if (mine !== looking) return; // another look has taken this one's place
    failed += 1;
    lost ||= moment(new Date());
    problem(`Connection lost: the server of this page has not answered since ${lost}. The page retries by itself, and shows the state at ${seen}.`);
  } finally {
    if (mine === looking) {
      looking = null;
      if (!document.hidden) timer = setTimeout(look, Math.min(INTERVAL_MS * 2 ** failed, MAX_INTERVAL_MS));
    }
  }
}

function display(state) {
  const isAway = state.problem_since !== null;
  if (isAway) {
    const since = moment(new Date(1000 * state.problem_since));
    problem(`Away since ${since}. ${state.problem} No permit is granted until it does. The page shows the state at ${seen}.`);
  } else {
    problem("");
    if (!state.problem) seen = moment(new Date());
  }
  write($("#refusal"), isAway ? "" : state.problem ?? "");
  if (lost) news(["Connected again."]);
  lost = "";
  failed = 0;
  allow(state.can_change);
  write($("#server"), state.server);
  if (!state.problem || state.totals.scopes) showTotals(state.totals);
  showNotice(state.problem ? "" : state.notice);
  show(state.scopes, state.opened);
  showPages(state);
  if (anchor && !state.problem) goToAnchor(state.opened);
  showNodes(state);
  showCrawls(state);
  showRules(state);
  write($("#caption"), caption(state));
  announce(state.scopes);
}

function problem(text) {
  write($("#problem"), text);
  document.body.classList.toggle("stale", Boolean(text));
}

function showTotals(totals) {
  for (const cell of document.querySelectorAll("[data-total]")) {
    const name = cell.dataset.total;
    const value = totals[name];
    if (name === "longest_wait") write(cell, seconds(value));
    else write(cell, name === "starts_per_second" ? starts(value) : number(value));
  }
}

/** No alert: its seconds change with each look. */
function showNotice(text) {
  $("#wait").hidden = !text;
  write($("#wait"), text);
}

function caption({ matching, scopes, totals, first, problem }) {
  const shown = matching > scopes.length
    ? `${number(first)} to ${number(first + scopes.length - 1)} of ${number(matching)} scopes`
    : matching === 1 ? "1 scope" : `${number(matching)} scopes`;
  const of = match ? ` that match, of ${number(totals.scopes)}` : "";
  const order = isHeld() ? "order held while you are in the table" : "those where most requests wait first";
  if (matching || match) return `${shown}${of}; ${order}`;
  return problem ? "It is not known which scopes are in use." : "No scope is in use.";
}

function showPages({ page: shown, pages }) {
  $("#pages").hidden = pages === 1;
  for (const button of document.querySelectorAll("[data-step]")) {
    button.value = shown + Number(button.dataset.step);
    button.disabled = button.value < 1 || button.value > pages;
  }
}

// Important changes are announced, also to screen readers ---------------------------------------it ------------------------------

function announce(scopes) {
  const now = new Map(scopes.map((scope) => [scope.id, scope]));
  const found = [];
  for (const [id, scope] of now) {
    const last = before.get(id);
    if (last) found.push(...changes(last, scope).map((text) => `${scope.scope} ${text}`));
  }
  before = now;
  if (found.length) news(found);
}

function changes(last, scope) {
  const found = [];
  const [wasClosed, isClosed] = [last, scope].map((one) => one.kind === "closed");
  if (isClosed && (scope.state !== last.state || scope.backoff_left > last.backoff_left)) {
    found.push(`is closed. ${scope.why}`);
  }
  if (wasClosed && !isClosed) found.push("goes on.");
  const [was, is] = [last, scope].map((one) => limit(one.limit_max, one.unlimited));
  if (scope.set_by && is !== was && is !== dash) {
    found.push(`has a limit of ${is}, set by ${withoutLetters(scope.set_by)}.`);
  }
  if (scope.set_by && scope.delay !== last.delay) found.push(`has a delay of ${delay(scope.delay ?? 0, scope.jitter)}.`);
  const [rateWas, rateIs] = [last, scope].map((one) => rate(one.rate, one.burst));
  if (scope.set_by && rateIs !== rateWas) found.push(scope.rate ? `has a rate of ${rateIs}.` : "has no rate.");
  const changed = is !== was || scope.delay !== last.delay || rateIs !== rateWas;
  if (last.set_by && !scope.set_by && (changed || !found.length)) found.push("follows the nodes’ settings again.");
  return found;
}

function news(texts) {
  const more = texts.length - MAX_NEWS;
  const shown = texts.slice(0, MAX_NEWS).join(" ");
  const time = new Date().toLocaleTimeString("en-GB");
  write($("#news"), `${time} ${shown}${more > 0 ? ` And ${more} more.` : ""}`);
}

// Filter and pages -------------------------------------------------------------------------------

$("#filter").addEventListener("input", (event) => {
  match = event.target.value;
  page = 1;
  letGo();
  moved();
});

for (const button of document.querySelectorAll("[data-step]")) {
  button.addEventListener("click", () => {
    page = Number(button.value);
    letGo();
    moved();
    $("#scopes-title").focus();
  });
}

// The address names what is shown, so that it can be sent to others ------------------------------

/** The name after the #; it can be any text. */
function anchored() {
  return new URLSearchParams(`name=${location.hash.slice(1)}`).get("name");
}

function goToAnchor(scope) {
  const name = anchor;
  anchor = "";
  if (scope) open(scope);
  else news([`${name} is not in use.`]);
}

function remember() {
  const query = new URLSearchParams();
  if (match) query.set("match", match);
  if (page > 1) query.set("page", page);
  if ($("#show-nodes").ariaExpanded === "true") query.set("nodes", "1");
  const hash = openedName() && `#${new URLSearchParams({ name: openedName() }).toString().slice("name=".length)}`;
  history.replaceState(null, "", `${location.pathname}${query.size ? `?${query}` : ""}${hash}`);
}

function moved() {
  remember();
  look();
}

$("#filter").value = match;
if (asked.has("nodes")) $("#show-nodes").click();
$("#show-nodes").addEventListener("click", remember);

window.addEventListener("hashchange", () => {
  anchor = anchored();
  look();
});

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) look();
});

window.addEventListener("online", look);

document.addEventListener("changed", moved);
look();
