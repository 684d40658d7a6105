// Questions before something is changed, and short messages after it.

import { ApiError, get, post } from "./api.js";
import { h, render } from "./dom.js";
import { count } from "./format.js";
import { filtersOf } from "./route.js";

// Changes of more jobs than this are asked for once more.
const ASK_ABOVE = 20;
const SHOWN_MS = 8_000;

const AT_ONCE = 500;
const NAMES = { requeue: "Requeue", hold: "Hold", cancel: "Cancel" };
const DONE = { requeue: "queued again", hold: "held", cancel: "cancelled" };

/**
 * Asks for a change, and says what came of it. `body` is {jobs: [...]}, {jobs: a function that finds them} or {scope};
 * `number` is how many jobs that are. Before many are changed, and before any is cancelled, `question` is asked;
 * `running` is how many of them would be stopped.
 */
export async function change(page, action, body, { question, number = 1, running = 0 }) {
  const answers = { yes: `${NAMES[action]} ${count(number, "job")}`, no: "Back" };
  if (action === "cancel") Object.assign(answers, { no: number === 1 ? "Keep the job" : "Keep the jobs", isDangerous: true, consequence: stopped(number, running) });
  if ((number > ASK_ABOVE || action === "cancel") && !(await confirmed(question, answers))) return false;
  try {
    const jobs = typeof body.jobs === "function" ? await body.jobs() : body.jobs;
    if (jobs?.length > number) {
      say(`${count(jobs.length, "job")} now, and ${number.toLocaleString("en-US")} were shown: look again.`, true);
      page.live.askNow();
      return false;
    }
    const answer = await post(`api/changes/${action}`, { ...body, jobs });
    say(outcome(action, answer), Object.keys(answer.refused ?? {}).length > 0);
    page.live.askNow();
    return true;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    // Without an answer, it may have been done.
    say(error.isUnreachable ? `${action}: ${error.message}. Whether it was done shows when the server answers again` : `${action} was refused: ${error.message}`, true);
    return false;
  }
}

/** The ids of all jobs of a kind, of those that the filters show. */
export async function jobsOf(query, kind) {
  const found = [];
  for (let after = 0; after !== null; ) {
    const params = filtersOf(query);
    for (const [name, value] of Object.entries({ ...kind, limit: AT_ONCE, after })) params.set(name, value);
    const answer = await get("api/jobs", params);
    found.push(...answer.jobs.map((row) => row.job));
    after = answer.next ?? null;
  }
  return found;
}

/** `changed` and the others have what became of each job, by its id. */
function outcome(action, { scope, done, changed, unchanged, refused }) {
  if (scope) return `${scope}: ${done}`;
  const sizes = [
    [changed, DONE[action]],
    [unchanged, "unchanged"],
    [refused, "refused"],
  ].map(([jobs, word]) => [Object.keys(jobs ?? {}).length, word]);
  const words = sizes.filter(([number], index) => number > 0 || index === 0).map(([number, word]) => `${count(number, "job")} ${word}`);
  const [why] = Object.entries(refused ?? {}).map(([job, reason]) => `. ${job}: ${reason}`);
  return words.join(", ") + (why ?? "");
}

function stopped(number, running) {
  if (!running) return number === 1 ? "It will not run." : "They will not run.";
  const which = number === 1 ? "It runs" : running === number ? "They run" : `${running.toLocaleString("en-US")} of them ${running === 1 ? "runs" : "run"}`;
  return `${which} now and will be stopped: what was not saved is lost.`;
}

/** A modal question. Escape and the button `no`, which has the focus, leave everything as it is. */
export function confirmed(question, { yes, no, isDangerous, consequence }) {
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-labelledby", "question");
  const close = (answer) => () => dialog.close(answer);
  render(
    dialog,
    h("h2", { id: "question" }, question),
    consequence && h("p", {}, consequence),
    h(
      "div",
      { class: "buttons" },
      h("button", { type: "button", onclick: close("no"), autofocus: true }, no),
      h("button", { type: "button", class: isDangerous ? "danger" : "primary", onclick: close("yes") }, yes),
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
