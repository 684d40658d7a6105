// Questions before something is changed, and short messages after it.

import { ApiError, post } from "./api.js";
import { h, render } from "./dom.js";
import { count } from "./format.js";

// Changes of more jobs than this are asked for once more.
const ASK_ABOVE = 20;
const SHOWN_MS = 8_000;

/** Asks for a change; says what came of it. `what`: {verb: "requeue", done: "requeued", jobs: 12}. */
export async function change(page, action, body, { question, number = 1 }) {
  if (number > ASK_ABOVE && !(await confirmed(question, `Yes, ${action} ${count(number, "job")}`))) return false;
  try {
    const answer = await post(`api/changes/${action}`, body);
    say(answer.text ?? `${action}: ${count(answer.changed ?? number, "job")}`);
    page.live.askNow();
    return true;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    say(`${action} was refused: ${error.message}`, true);
    return false;
  }
}

/** A modal question; Escape and Cancel mean no. */
export function confirmed(question, yes) {
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-label", question);
  const close = (answer) => () => dialog.close(answer);
  render(
    dialog,
    h("p", {}, question),
    h(
      "div",
      { class: "buttons" },
      h("button", { type: "button", onclick: close("no"), autofocus: true }, "Cancel"),
      h("button", { type: "button", class: "primary", onclick: close("yes") }, yes),
    ),
  );
  document.body.append(dialog);
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    dialog.showModal();
  });
}

/** A message in the corner, read aloud by screen readers; an error stays until it is closed. */
export function say(words, isError = false) {
  const place = messages();
  const note = document.createElement("div");
  note.className = isError ? "message problem" : "message";
  const close = () => note.remove();
  render(note, h("span", {}, words), h("button", { type: "button", "aria-label": "Close", onclick: close }, "×"));
  place.append(note);
  if (!isError) setTimeout(close, SHOWN_MS);
}

function messages() {
  let place = document.getElementById("messages");
  if (!place) {
    place = document.createElement("div");
    place.id = "messages";
    place.setAttribute("role", "status");
    document.body.append(place);
  }
  return place;
}
