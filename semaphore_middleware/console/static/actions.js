// Pause and resume: only with the token, which stays in this tab.

const KEY = "semaphore-token";
const unlock = document.querySelector("#unlock");
const dialog = document.querySelector("#ask");
const input = document.querySelector("#token");
const refused = document.querySelector("#refused");
let token = sessionStorage.getItem(KEY);
let allowed = false; // whether the command was given a token

/** Called with each state: if the server allows no changes, the page shows no buttons. */
export function allow(canChange) {
  allowed = canChange;
  showLock();
}

const ONE = { pause: "It is paused.", resume: "It goes on." };
const ALL = { pause: "All sites are paused.", resume: "The pause of all sites has ended." };

/** Buttons that pause and resume what `scope()` names; `words` are the answers. */
export function changeButtons(scope, title, words = ONE) {
  const group = document.querySelector("#change").content.firstElementChild.cloneNode(true);
  const answer = group.querySelector(".answer");
  group.setAttribute("aria-label", `Pause or resume ${title}`);
  for (const button of group.querySelectorAll("[data-action]")) {
    const { action } = button.dataset;
    if (words === ALL) button.textContent += " all";
    button.addEventListener("click", async () => {
      answer.textContent = "…";
      const error = await send("actions", { action, name: scope() });
      answer.classList.toggle("wrong", Boolean(error));
      answer.textContent = error || words[action];
      if (!error) changed();
    });
  }
  return group;
}

/** Have the page fetch the state again, after a change. */
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

/** Send a change. Returns the reason why it was not made; empty: it was. */
async function send(path, action) {
  let answer;
  try {
    answer = await fetch(path, {
      method: "POST",
      headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" },
      body: JSON.stringify(action),
    });
  } catch {
    return "Connection lost: the change may or may not have been made.";
  }
  if (answer.ok) return "";
  const { error } = await answer.json().catch(() => ({ error: `status ${answer.status}` }));
  if (answer.status === 403) forget();
  return `Refused: ${error}.`;
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
  const error = /^[!-~]+$/.test(token) ? await send("token", {}) : "Refused: the token is wrong.";
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

document.querySelector("#all").append(changeButtons(() => "*", "all sites", ALL));
document.querySelector("#any").append(changeButtons(() => document.querySelector("#name").value, "any scope or pattern"));
