// Changes: only with the token, which stays in this tab.

import { nameOf, write } from "./draw.js";

const KEY = "semaphore-token";
const unlock = document.querySelector("#unlock");
const dialog = document.querySelector("#ask");
const input = document.querySelector("#token");
const refused = document.querySelector("#refused");
let token = sessionStorage.getItem(KEY);
let allowed = false; // whether the command was given a token at all

/** Called with each state: a page whose server allows no changes shows no way to make any. */
export function allow(canChange) {
  allowed = canChange;
  showLock();
}

/** A form that changes what is set for `scope()`. */
export function changeForm(scope, title) {
  const form = document.querySelector("#change").content.firstElementChild.cloneNode(true);
  const answer = form.querySelector(".answer");
  form.setAttribute("aria-label", title ? `Change ${title}` : "Change any scope or pattern");
  const act = async (what, said) => {
    answer.textContent = "…";
    const { error } = await send("actions", { name: scope(), ...what });
    answer.classList.toggle("wrong", Boolean(error));
    answer.textContent = error || said;
    if (!error) changed();
    return !error;
  };
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const { limit, delay, rate, burst } = form.elements;
    const parts = {};
    if (limit.value) parts.concurrency = Number(limit.value);
    if (delay.value) parts.delay = Number(delay.value);
    const written = rate.value.trim();
    if (written) parts.rate = written === "none" ? null : written;
    if (burst.value) parts.burst = Number(burst.value);
    if (!Object.keys(parts).length) {
      answer.textContent = "Give a limit, a delay, a rate or a burst.";
    } else if (await act({ action: "limit", limit: parts }, "It is set.")) {
      form.reset();
    }
  });
  const words = { pause: "It is paused.", resume: "It goes on.", reset: "The nodes’ settings hold again." };
  for (const button of form.querySelectorAll("[data-action]")) {
    const { action } = button.dataset;
    button.addEventListener("click", () => act({ action }, words[action]));
  }
  return form;
}

/** What is shown is not as it is any more. */
export function changed() {
  document.dispatchEvent(new Event("changed"));
}

function isUnlocked() {
  return allowed && token !== null;
}

function showLock() {
  unlock.hidden = !allowed;
  unlock.textContent = isUnlocked() ? "Lock" : "Unlock…";
  document.body.classList.toggle("unlocked", isUnlocked());
}

/** What the server tells of what it has done; or the `error`, if it was not done. */
async function send(path, action) {
  let answer;
  try {
    answer = await fetch(path, {
      method: "POST",
      headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" },
      body: JSON.stringify(action),
    });
  } catch {
    return { error: "Connection lost: the change may or may not have been made." };
  }
  const told = answer.status === 204 ? {} : await answer.json().catch(() => ({ error: `status ${answer.status}` }));
  if (answer.ok) return { told };
  if (answer.status === 403) forget();
  return { error: `Refused: ${told.error}.` };
}

function forget() {
  token = null;
  sessionStorage.removeItem(KEY);
  showLock();
}

unlock.addEventListener("click", () => {
  if (isUnlocked()) {
    forget();
  } else {
    refused.textContent = "";
    input.value = "";
    dialog.showModal();
  }
});

document.querySelector("#cancel").addEventListener("click", () => dialog.close());

dialog.addEventListener("submit", async (event) => {
  event.preventDefault();
  token = input.value;
  let error;
  if (!/^[!-~]+$/.test(token)) {
    error = "Refused: the token is wrong.";
  } else {
    ({ error } = await send("token", {}));
  }
  if (error) {
    forget();
    refused.textContent = error;
    input.select();
    return;
  }
  sessionStorage.setItem(KEY, token);
  showLock();
  dialog.close();
});

document.querySelector("#any").append(changeForm(() => document.querySelector("#name").value, ""));

// A question before what cannot be taken back ----------------------------------------------------

const confirmation = document.querySelector("#confirm");
const [title, text, problem] = confirmation.querySelectorAll("h2, p:not(.buttons)");
const [yes, cancel] = confirmation.querySelectorAll("button");
let question = null;

/**
 * Ask `{ title, name, text, yes, action, done }`, where `name` is whom the text is of. `action` is
 * sent if the answer is yes, and `done` is called with what the server tells of it.
 */
export function confirm(asked) {
  question = asked;
  write(title, asked.title);
  text.replaceChildren(nameOf(asked.name), ` ${asked.text}`);
  write(yes, asked.yes);
  write(problem, "");
  confirmation.showModal();
}

cancel.addEventListener("click", () => confirmation.close());

confirmation.addEventListener("submit", async (event) => {
  event.preventDefault();
  const { action, done } = question;
  yes.disabled = true; // once is enough
  const { error, told } = await send("actions", action);
  yes.disabled = false;
  if (error) {
    write(problem, error);
    return;
  }
  confirmation.close();
  done(told);
});
