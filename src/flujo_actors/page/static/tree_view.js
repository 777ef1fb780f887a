// @ts-check
// The tree of a run beside its timeline: a list of lines of one height, of which only those in sight are drawn.

import { repeat } from "./vendor/directives/repeat.js";
import { html, nothing } from "./vendor/lit-html.js";
import { count, dollars, duration, mark, oneLine, tokens } from "./format.js";
import { place } from "./place.js";
import { countsOf, isCrowd } from "./visible.js";

/** @typedef {import("./visible.js").Line} Line */
/** @typedef {import("./fold.js").Node} Node */

export const LINE_PX = 26;
const SPARE_LINES = 4;

/** @param {any} app @param {Line[]} lines */
export function treeView(app, lines) {
  const { top, height } = app.scroll;
  const first = Math.max(0, Math.floor(top / LINE_PX) - SPARE_LINES);
  const end = Math.min(lines.length, Math.ceil((top + height) / LINE_PX) + SPARE_LINES);
  const drawn = lines.slice(first, end);
  const scale = timeScale(app);
  return html`
    <div class="tree" role="tree" aria-label="Steps of the run" tabindex="0" id="tree"
         aria-activedescendant=${activeId(app, drawn)} @scroll=${app.onScroll} @keydown=${app.onTreeKey}>
      <div class="all" role="presentation" ${place({ height: `${lines.length * LINE_PX}px` })}>
        ${repeat(drawn, (line) => line.key, (line, i) => lineView(app, line, first + i, lines.length, scale))}
      </div>
      ${lines.length ? nothing : html`<p class="empty">${app.emptyTree()}</p>`}
    </div>`;
}

/** @param {any} app @param {Line[]} drawn */
function activeId(app, drawn) {
  return drawn.some((line) => line.key === app.route.step) ? lineId(app.route.step) : nothing;
}

/** @param {string} path */
export const lineId = (path) => `line-${encodeURIComponent(path)}`;

/** @param {any} app @param {Line} line @param {number} index @param {number} all @param {Scale} scale */
function lineView(app, line, index, all, scale) {
  const { node, unit } = line;
  const chosen = app.route.step === line.key;
  const status = unit ? (unit.done ? "success" : "running") : node.status;
  const name = oneLine(unit ? unitName(unit) : nameOf(node));
  return html`
    <div class="line ${status} ${chosen ? "chosen" : ""}" role="treeitem" id=${lineId(line.key)}
         aria-label="${name}, ${status}" aria-level=${line.level} aria-selected=${chosen} aria-posinset=${index + 1} aria-setsize=${all}
         aria-expanded=${line.folds ? String(line.open) : nothing} data-path=${line.key}
         ${place({ transform: `translateY(${index * LINE_PX}px)` })} @click=${() => app.choose(line.key)}>
      <span class="label" ${place({ "padding-left": `${(line.level - 1) * 18}px` })}>
        <span class="fold" aria-hidden="true" @click=${(/** @type {Event} */ e) => app.toggle(e, node.path)}>${line.folds ? (line.open ? "▾" : "▸") : ""}</span>
        <span class="mark" aria-hidden="true">${mark(status)}</span>
        <span class="name">${name}</span>
        <span class="facts">${unit ? unitFacts(unit) : facts(app, node)}</span>
      </span>
      <span class="time">${unit ? nothing : bar(node, scale)}</span>
    </div>`;
}

/** An item of a map is known by its number, too. @param {Node} node */
function nameOf(node) {
  const item = /\/~i(\d+)$/.exec(node.path);
  return item ? `[${item[1]}] ${node.name === `[${item[1]}]` ? "" : node.name}` : node.name;
}

/** A tool with its arguments, or the number of a model's turn. @param {import("./fold.js").Unit} unit */
export function unitName(unit) {
  if (unit.note) return unit.note;
  return unit.name.includes(":") ? "tool call" : `turn ${unit.name}`;
}

/** @param {import("./fold.js").Unit} unit */
function unitFacts(unit) {
  return [unit.done ? "" : "in flight", tokens(unit.tokens), dollars(unit.cost)].filter(Boolean).join("  ");
}

/** @param {any} app @param {Node} node */
function facts(app, node) {
  if (isCrowd(node)) return crowdFacts(node);
  const text = node.status === "running" ? app.run.texts.get(node.path) : "";
  const said = text ? oneLine(text.slice(-160)) : oneLine(node.note);
  const tried = node.attempts > 1 ? `${node.attempts} attempts` : "";
  const used = [node.latencyMs ? duration(node.latencyMs) : "", tried, tokens(node.countedTokens), dollars(node.countedCost)];
  return [...used, said].filter(Boolean).join("  ");
}

/** @param {Node} node */
const crowdFacts = (node) => countsView(countsOf(node), { tokens: node.countedTokens, cost: node.countedCost });

/** How many steps stand how, in one line. @param {any} counts @param {{tokens: number, cost: number}} used */
export function countsView({ done, failed, waiting, running, toGo, all }, used) {
  return html`<span class="counts">${all ? `${count(all)} items` : nothing}
    <b class="success">✓ ${count(done)}</b>
    ${failed ? html`<b class="failure">✗ ${count(failed)}</b>` : nothing}
    ${waiting ? html`<b class="waiting">? ${count(waiting)}</b>` : nothing}
    ${running ? html`<b class="running">… ${count(running)} running</b>` : nothing}
    ${toGo ? html`${count(toGo)} to go` : nothing}
    ${tokens(used.tokens)} ${dollars(used.cost)}</span>`;
}

/** @typedef {{from: number, span: number}} Scale */

/** @param {any} app @returns {Scale} */
function timeScale(app) {
  const outline = app.outline();
  const from = outline.beganMs ?? 0;
  const to = Math.max(outline.changedMs ?? from, app.isLive() ? app.nowMs() : 0);
  return { from, span: Math.max(1, to - from) };
}

/** @param {Node} node @param {Scale} scale */
function bar(node, { from, span }) {
  if (node.beganMs === null) return nothing;
  const left = Math.min(1, Math.max(0, (node.beganMs - from) / span));
  const open = node.status === "running" || node.status === "waiting";
  const width = open ? 1 - left : Math.min(1 - left, node.latencyMs / span);
  return html`<i class="bar" aria-hidden="true" ${place({ left: `${(left * 100).toFixed(2)}%`, width: `${Math.max(0.3, width * 100).toFixed(2)}%` })}></i>`;
}
