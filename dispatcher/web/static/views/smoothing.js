// How smooth curves are: a setting of the address, and the field that changes it.

import { h } from "../dom.js";
import { SMOOTHINGS } from "../lines.js";

/** The part of the axis over which means are taken. */
export function smoothingOf(query) {
  const chosen = Number(query.get("smooth")) / 100;
  return SMOOTHINGS.includes(chosen) ? chosen : 0;
}

/** `onchange` gets what the address shall have. */
export function smoothingField(query, onchange) {
  const now = smoothingOf(query);
  const written = (share) => (share ? `${Math.round(share * 100)} %` : "off");
  const set = ({ target }) => {
    const share = SMOOTHINGS[target.value];
    onchange(share ? String(Math.round(share * 100)) : null);
  };
  const range = {
    type: "range",
    name: "smooth",
    min: 0,
    max: SMOOTHINGS.length - 1,
    step: 1,
    value: String(SMOOTHINGS.indexOf(now)),
    "aria-label": "Smoothing",
    "aria-valuetext": now ? `mean over ${written(now)} of the axis` : "off",
    oninput: set,
  };
  const title = "Each value is the mean over this part of the axis around it";
  return h("label", { class: "choice", key: "smooth", title }, h("span", {}, "Smoothing"), h("input", range), h("output", {}, written(now)));
}
