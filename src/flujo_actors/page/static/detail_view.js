// @ts-check
// What is known of one step: its output, what it did to the context, its errors, its turns, and the records themselves.

import { html, nothing } from "./vendor/lit-html.js";
import { address } from "./api.js";
import { count, dollars, duration, moment, oneLine, safe, shown, tokens } from "./format.js";
import { questionView } from "./form_view.js";
import { groupView } from "./graph_view.js";
import { unitName } from "./tree_view.js";

const TABS = ["output", "input", "context", "error", "raw"];

/** @param {any} app */
export function detailView(app) {
  const path = app.route.step;
  const node = app.outline().nodes.get(path);
  const unit = node ? null : app.unitAt(path);
  const questions = app.run.questions.filter((/** @type {any} */ each) => !path || each.path === path || app.outline().questions.has(each.path));
  return html`
    <aside class="detail" aria-label="Details">
      ${app.isLive() ? questions.map((/** @type {any} */ each) => questionView(app, each)) : nothing}
      ${node && path ? stepView(app, node) : unit ? unitView(app, unit) : path && app.graph.has(path) ? groupView(app) : runView(app)}
    </aside>`;
}

/** @param {any} app */
function runView(app) {
  const { info } = app.run;
  const outline = app.outline();
  return html`
    <h2>Run</h2>
    <dl>
      <dt>id</dt><dd>${safe(app.route.run)}</dd>
      <dt>pipeline</dt><dd>${safe(info?.pipeline ?? "")}</dd>
      <dt>begun</dt><dd>${moment(outline.beganMs)}</dd>
      ${outline.origin ? html`<dt>forked from</dt><dd><a href=${app.linkTo({ run: outline.origin })}>${safe(outline.origin)}</a></dd>` : nothing}
      ${outline.feedback ? html`<dt>feedback</dt><dd class="text">${safe(outline.feedback)}</dd>` : nothing}
    </dl>
    <h3>input</h3>${bodyPart(app, 1, "input")}
    ${app.run.endSeq ? bodyView(app, app.run.endSeq, "end") : nothing}`;
}

/** @param {any} app @param {any} node */
function stepView(app, node) {
  const tab = app.route.tab || (node.status === "failure" ? "error" : "output");
  return html`
    <h2>${oneLine(node.name)} <small>${node.status}</small></h2>
    <p class="small">${[node.latencyMs ? duration(node.latencyMs) : "", `${node.attempts} attempt${node.attempts > 1 ? "s" : ""}`, tokens(node.countedTokens), dollars(node.countedCost)].filter(Boolean).join(" · ")}</p>
    ${app.readOnly || !node.seq ? nothing : html`<p><button type="button" @click=${() => app.fork(node.seq)}>Fork after this step</button></p>`}
    <div class="tabs" role="tablist">${TABS.map((each) => html`
      <button role="tab" type="button" aria-selected=${each === tab} @click=${() => app.go({ tab: each })}>${each}</button>`)}</div>
    <div role="tabpanel" aria-label=${tab}>${tabView(app, node, tab)}</div>`;
}

/** @param {any} app @param {any} node @param {string} tab */
function tabView(app, node, tab) {
  const text = app.run.texts.get(node.path);
  if (tab === "output" && node.status === "running" && text) return html`<pre class="text live">${safe(text)}</pre>`;
  if (tab === "error") return html`${node.tries.map((/** @type {any} */ row) => bodyPart(app, row[0], "error", `attempts so far: ${row[8]}`))}${node.seq ? bodyPart(app, node.seq, "error") : nothing}`;
  if (!node.seq) return html`<p class="small">${app.whyNothing(node)}</p>`;
  return bodyPart(app, node.seq, tab);
}

/** @param {any} app @param {number} seq @param {string} title */
function bodyView(app, seq, title) {
  return html`<h3>${safe(title)}</h3>${bodyPart(app, seq, "raw")}`;
}

/** What a model or a tool was asked, and what came back. @param {any} app @param {import("./fold.js").Unit} unit */
function unitView(app, unit) {
  const asked = unit.askedSeq && unit.askedSeq !== unit.seq ? bodyView(app, unit.askedSeq, "asked") : nothing;
  return html`<h2>${oneLine(unitName(unit))} <small>${unit.done ? "done" : "in flight"}</small></h2>${asked}${bodyView(app, unit.seq, unit.done ? "result" : "asked")}`;
}

/** One part of a record's body, which is fetched when it is looked at. */
function bodyPart(/** @type {any} */ app, /** @type {number} */ seq, /** @type {string} */ part, title = "") {
  const body = app.body(seq);
  if (!body) return html`<p class="small">loading …</p>`;
  if (body.problem) return html`<p class="problem">${safe(body.problem)}</p>`;
  return html`${title ? html`<h3>${title}</h3>` : nothing}${partView(app, seq, body, part)}`;
}

/** @param {any} app @param {number} seq @param {any} body @param {string} part */
function partView(app, seq, body, part) {
  if (body.hidden) return html`<p class="small">This page shows the structure of runs, not their content.</p>`;
  const whole = html`<p class="small"><a href=${address("record", { run: app.route.run, seq, full: 1 })} download>${count(body.chars)} characters: download</a></p>`;
  switch (part) {
    case "output": return body.output === undefined ? html`<p class="small">no output</p>` : html`<pre class="text">${shown(body.output)}</pre>${body.cut ? whole : nothing}`;
    case "input": return body.input?.known ? html`<pre class="text">${shown(body.input.value)}</pre>` : html`<p class="small">${safe(body.input?.why ?? "It is not stored, and cannot be derived here.")}</p>`;
    case "context": return contextView(body.context);
    case "error": return errorView(body.error, body.feedback);
    default: return html`<pre class="text raw">${shown(body.body)}</pre>${body.cut ? whole : nothing}`;
  }
}

/** @param {any} context */
function contextView(context) {
  if (!context || !context.changes.length) return html`<p class="small">It left the context as it was.</p>`;
  return html`<table class="diff"><thead><tr><th scope="col">key</th><th scope="col">before</th><th scope="col">after</th></tr></thead><tbody>
    ${context.changes.map((/** @type {any} */ each) => html`<tr class=${each.kind}><th scope="row">${safe(each.key)} <small>${each.kind}</small></th>
      <td><pre>${each.before === undefined ? "" : shown(each.before)}</pre></td><td><pre>${each.after === undefined ? "" : shown(each.after)}</pre></td></tr>`)}
  </tbody></table>`;
}

/** @param {any} error @param {string | null} feedback @returns {any} */
function errorView(error, feedback) {
  if (!error && !feedback) return html`<p class="small">no error</p>`;
  return html`
    ${feedback ? html`<p class="text">${safe(feedback)}</p>` : nothing}
    ${error ? html`<p class="error"><b>${safe(error.type_name)}</b> ${safe(error.message)}</p>
      ${(error.frames ?? []).length ? html`<ol class="frames">${error.frames.map((/** @type {any} */ frame) => html`<li><code>${safe(frame.file)}:${frame.line}</code> in ${safe(frame.function)}</li>`)}</ol>` : nothing}
      ${(error.causes ?? []).map((/** @type {any} */ cause) => html`<div class="cause">because of ${errorView(cause, null)}</div>`)}` : nothing}`;
}
