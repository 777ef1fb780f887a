// @ts-check
// The whole page by keys: j k h l through the tree, / to search, f c for filter and compare, ? for this list.

import { html } from "./vendor/lit-html.js";

const KEYS = [
  ["j k", "next, previous step"], ["h l", "fold, unfold"], ["Enter", "open a run, unfold a step"], ["/", "search"],
  ["f", "failed steps only, or all"], ["c", "compare with another run"], ["v", "view as graph, or as tree"], ["g", "go to live"], ["u", "up to the list"],
  ["?", "show or hide these keys"],
];

/** @param {any} app */
export function keysView(app) {
  return html`
    <dialog open class="keys" aria-label="Keys">
      <table>${KEYS.map(([key, does]) => html`<tr><th scope="row"><kbd>${key}</kbd></th><td>${does}</td></tr>`)}</table>
      <button type="button" @click=${() => toggleHelp(app)}>Close</button>
    </dialog>`;
}

/** @param {any} app */
function toggleHelp(app) {
  app.help = !app.help;
  app.redraw();
}

/** @param {EventTarget | null} target */
const isWriting = (target) => target instanceof HTMLElement && target.matches("input:not([type=range]), textarea, select");

/** @param {any} app @param {KeyboardEvent} event */
export function onKey(app, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    if (app.help) toggleHelp(app);
    else if (isWriting(event.target)) /** @type {HTMLElement} */ (event.target).blur();
    return;
  }
  if (isWriting(event.target)) return;
  const does = DOES[event.key] ?? (app.route.run ? IN_A_RUN[event.key] : IN_THE_LIST[event.key]);
  if (!does) return;
  event.preventDefault();
  does(app);
}

/** @type {Record<string, (app: any) => void>} */
const DOES = { "?": toggleHelp, "/": () => document.getElementById("search")?.focus() };

/** @type {Record<string, (app: any) => void>} */
const IN_A_RUN = {
  j: (app) => move(app, 1),
  k: (app) => move(app, -1),
  h: (app) => app.fold(app.at(), false),
  l: (app) => app.fold(app.at(), true),
  v: (app) => app.go({ view: app.route.view ? "" : "graph" }),
  f: (app) => app.go({ filter: app.route.filter === "failed" ? "" : "failed" }),
  c: (app) => app.openCompare(),
  g: (app) => app.go({ seq: null }),
  u: (app) => app.go({ run: "", step: "", other: "" }),
};

/** @type {Record<string, (app: any) => void>} */
const IN_THE_LIST = { j: () => step(1), k: () => step(-1) };

/** @param {number} by */
function step(by) {
  const links = /** @type {HTMLElement[]} */ ([...document.querySelectorAll(".runs a")]);
  const at = links.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  links[Math.max(0, Math.min(links.length - 1, at + by))]?.focus();
}

/** @param {any} app @param {number} by */
function move(app, by) {
  const stops = app.stops();
  const to = stops[Math.max(0, Math.min(stops.length - 1, stops.indexOf(app.at()) + by))];
  if (to !== undefined) app.moveTo(to);
}

/** Arrows, as in every tree. @param {any} app @param {KeyboardEvent} event */
export function onTreeKey(app, event) {
  const arrows = { ArrowDown: IN_A_RUN.j, ArrowUp: IN_A_RUN.k, ArrowLeft: IN_A_RUN.h, ArrowRight: IN_A_RUN.l, Enter: IN_A_RUN.l };
  const does = arrows[/** @type {"Enter"} */ (event.key)];
  if (!does) return;
  event.preventDefault();
  does(app);
}
