// @ts-check
// The graph of a run: the pipeline as it was declared, as nested boxes, each with how its steps stand.

import { repeat } from "./vendor/directives/repeat.js";
import { html, nothing } from "./vendor/lit-html.js";
import { declaredPath, lastName, parentOf } from "./fold.js";
import { count, dollars, duration, mark, oneLine, tokens } from "./format.js";
import { earlierKey, isAcross, isAside, isWanted, laterKey, statusOf, stepsOf } from "./graph.js";
import { countsView } from "./tree_view.js";
import { countsOf, isCrowd } from "./visible.js";

/** @typedef {import("./graph.js").Box} Box */
/** @typedef {import("./graph.js").Shown} Shown */
/** @typedef {import("./fold.js").Group} Group */

const LISTED = 12;
const OVER = new Set(["success", "failure", "aborted"]);

/** @param {any} app */
export function graphView(app) {
  const whole = app.graph.sight();
  const chosen = chosenPath(app);
  return html`
    <div class="graph" role="tree" aria-label="Graph of the pipeline" tabindex="0" id="graph"
         aria-activedescendant=${app.graph.stops().includes(chosen) ? boxId(chosen) : nothing} @keydown=${app.onTreeKey}>
      ${insideView(app, whole)}
      ${whole.inside.length ? nothing : html`<p class="empty">${app.emptyTree()}</p>`}
    </div>`;
}

/** The box that the chosen step stands in. @param {any} app */
const chosenPath = (app) => declaredPath(app.route.step);

/** @param {string} path */
export const boxId = (path) => `box-${encodeURIComponent(path)}`;

/** @param {any} app @param {Shown} shown @returns {any} */
function insideView(app, shown) {
  const aside = shown.inside.filter(({ box }) => isAside(box));
  const main = shown.inside.filter(({ box }) => !isAside(box));
  return html`
    ${shown.earlier ? moreView(app, earlierKey(shown), shown.level, `${count(shown.earlier)} earlier`) : nothing}
    ${main.length ? html`<div class=${isAcross(shown.box) ? "across" : "down"} role="presentation">${boxesView(app, main)}</div>` : nothing}
    ${aside.length ? html`<div class="across aside" role="presentation">${boxesView(app, aside)}</div>` : nothing}
    ${shown.later ? moreView(app, laterKey(shown), shown.level, `${count(shown.later)} more`) : nothing}`;
}

/** @param {any} app @param {Shown[]} boxes */
const boxesView = (app, boxes) => repeat(boxes, ({ box }) => box.path, (each) => boxView(app, each));

/** @param {any} app @param {Shown} shown @returns {any} */
function boxView(app, shown) {
  const { box, level, open } = shown;
  const group = app.outline().groups.get(box.path);
  const status = statusHere(app, box, group);
  const name = nameOf(box, group);
  const chosen = chosenPath(app) === box.path;
  const dim = (app.route.filter || app.route.q) && !isWanted(box, app.outline(), app.route);
  return html`
    <div class="box ${status} ${chosen ? "chosen" : ""} ${dim ? "dim" : ""}" role="treeitem" id=${boxId(box.path)} data-path=${box.path}
         aria-label="${name}, ${box.kind}, ${status}" aria-level=${level} aria-selected=${chosen}
         aria-expanded=${box.inside.length ? String(open) : nothing}>
      <div class="head" @click=${() => app.graph.choose(box.path)}>
        <span class="fold" aria-hidden="true" @click=${(/** @type {Event} */ e) => app.graph.toggle(e, box.path)}>${box.inside.length ? (open ? "▾" : "▸") : ""}</span>
        <span class="mark" aria-hidden="true">${mark(status)}</span>
        <span class="name">${name}</span>
        ${box.kind === "step" ? nothing : html`<span class="kind">${kindText(box)}</span>`}
        <span class="facts">${facts(app, box, group)}</span>
      </div>
      ${open ? html`<div class="inside" role="group">${insideView(app, shown)}</div>` : nothing}
    </div>`;
}

/** A way to the boxes that are not shown. @param {any} app @param {string} key @param {number} level @param {string} text */
function moreView(app, key, level, text) {
  const chosen = app.graph.at === key;
  return html`
    <div class="more ${chosen ? "chosen" : ""}" role="treeitem" id=${boxId(key)} aria-label=${text} aria-level=${level + 1}
         aria-selected=${chosen} @click=${() => app.graph.turn(key)}>… ${text}</div>`;
}

/** @param {Box} box @param {Group | undefined} group */
function nameOf(box, group) {
  if (box.path.endsWith("/~i")) return oneLine((group?.name ?? "").replace(/\[\d+\]$/, "")) || "each";
  return oneLine(isAside(box) && group ? `${lastName(box.path)}: ${group.name}` : group?.name ?? lastName(box.path));
}

/** @param {Box} box */
const kindText = (box) => ({ pipeline: "", question: "asks", approval: "asks" })[box.kind] ?? box.kind;

/** A box that never began is still to come, or was passed by. @param {any} app @param {Box} box @param {Group | undefined} group */
function statusHere(app, box, group) {
  if (group) return statusOf(group);
  const around = statusOf(app.outline().groups.get(parentOf(box.path)));
  return app.isOver() || OVER.has(around) ? "skipped" : "pending";
}

/** @param {any} app @param {Box} box @param {Group | undefined} group */
function facts(app, box, group) {
  const outline = app.outline();
  const items = outline.groups.get(`${box.path}/~i`);
  if (items && box.kind === "map") return countsView(itemCounts(outline, box, items), items);
  if (!group) return nothing;
  if (group.seen > 1) return countsView({ ...group, done: group.success, failed: group.failure, all: 0, toGo: 0 }, group);
  const node = outline.nodes.get(group.last);
  if (node && isCrowd(node)) return countsView(countsOf(node), group);
  return onlyFacts(app, node, group);
}

/** @param {any} outline @param {Box} box @param {Group} items */
function itemCounts(outline, box, items) {
  const around = outline.nodes.get(outline.groups.get(box.path)?.last ?? "");
  const all = Math.max(items.seen, around?.of ?? 0);
  const { success: done, failure: failed, waiting, running } = items;
  return { all, done, failed, waiting, running, toGo: Math.max(0, all - items.seen) };
}

/** What is told of a step that there is one of. @param {any} app @param {any} node @param {Group} group */
function onlyFacts(app, node, group) {
  const text = node.status === "running" ? app.run.texts.get(node.path) : "";
  const turns = app.outline().turns.get(node.path)?.length ?? 0;
  const tried = node.attempts > 1 ? `${node.attempts} attempts` : "";
  const said = oneLine(text ? text.slice(-80) : node.note);
  const told = [node.latencyMs ? duration(node.latencyMs) : "", tried, turns ? `${turns} units` : "", tokens(group.tokens), dollars(group.cost), said];
  return told.filter(Boolean).join("  ");
}

/** The details of a box with several steps, or none. @param {any} app */
export function groupView(app) {
  const path = app.route.step;
  const group = app.outline().groups.get(path);
  if (!group) return html`<h2>${oneLine(lastName(path))}</h2><p class="small">${app.isOver() ? "It was not needed." : "It has not begun."}</p>`;
  const settled = group.success + group.failure;
  const counts = { ...group, done: group.success, failed: group.failure, all: 0, toGo: 0 };
  return html`
    <h2>${oneLine(group.name)} <small>${count(group.seen)} times</small></h2>
    <p class="small">${countsView(counts, group)} ${settled ? `· ${duration(group.latencyMs / settled)} each` : nothing}</p>
    <ul class="steps">${stepsOf(app.outline(), path, LISTED).map((node) => html`
      <li class=${node.status}><span class="mark" aria-hidden="true">${mark(node.status)}</span>
        <a href=${app.linkTo({ step: node.path })}>${oneLine(node.path.replace(/\/~i(\d+)/g, "[$1]"))}</a> <span class="small">${oneLine(node.note)}</span></li>`)}</ul>
    <p class="small"><a href=${app.linkTo({ view: "", q: group.name, step: "" })}>all of them in the tree</a></p>`;
}
