// A question before what cannot be taken back, and the answer of the server.

import { send } from "./actions.js";
import { nameOf, write } from "./draw.js";

const dialog = document.querySelector("#confirm");
const [title, text, refused] = dialog.querySelectorAll("h2, p:not(.buttons)");
const [yes, cancel] = dialog.querySelectorAll("button");
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
  write(refused, "");
  yes.disabled = false;
  dialog.showModal();
}

cancel.addEventListener("click", () => dialog.close());

dialog.addEventListener("submit", async (event) => {
  event.preventDefault();
  const { action, done } = question;
  yes.disabled = true; // once is enough
  const { error, told } = await send("actions", action);
  yes.disabled = false;
  if (error) {
    write(refused, error);
    return;
  }
  dialog.close();
  done(told);
});
