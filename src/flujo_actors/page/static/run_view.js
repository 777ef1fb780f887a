// @ts-check
// One run: its head, the slider through time, the tree beside the details.

import { html, nothing } from "./vendor/lit-html.js";
import { address } from "./api.js";
import { count, dollars, duration, mark, safe, tokens } from "./format.js";
import { detailView } from "./detail_view.js";
import { graphView } from "./graph_view.js";
import { treeView } from "./tree_view.js";

const ENDED = new Set(["completed", "failed", "aborted"]);

/** @param {any} app */
export function runView(app) {
  return html`
    <header class="top">
      <nav aria-label="Where you are"><a href=${app.linkTo({ run: "" })}>runs</a> ▸ <span class="id">${safe(app.route.run)}</span></nav>
      <p class="pipeline">${safe(app.run.info?.pipeline ?? "")}</p>
      ${statusView(app)}
      ${actionsView(app)}
    </header>
    ${sliderView(app)}
    ${filterView(app)}
    ${app.notice()}
    <main class="both">${app.route.view === "graph" ? graphView(app) : treeView(app, app.lines())}${detailView(app)}</main>`;
}

/** @param {any} app */
function statusView(app) {
  const outline = app.outline();
  const status = app.status();
  return html`
    <p class="status ${status}" role="status" data-live=${app.listens()}>
      <span class="mark" aria-hidden="true">${mark(status)}</span> <b>${status}</b>
      <span id="clock">${duration(app.tookMs())}</span>
      <span>${tokens(outline.tokens)}</span> <span>${dollars(outline.cost)}</span>
      ${status === "abandoned" ? html`<span class="note">Its process is gone: a process with this pipeline must recover() it.</span>` : nothing}
      ${app.connected ? nothing : html`<span class="note">reconnecting …</span>`}
    </p>`;
}

/** @param {any} app */
function actionsView(app) {
  const status = app.status();
  return html`
    <p class="actions">
      ${app.readOnly || ENDED.has(status) ? nothing : html`<button type="button" id="cancel" @click=${app.cancel}>Cancel</button>`}
      ${app.readOnly || !app.canResume(status) ? nothing : html`<button type="button" id="resume" @click=${app.resume}>Resume</button>`}
      <button type="button" id="compare" @click=${app.askForOther}>Compare …</button>
      <a href=${address("export", { run: app.route.run })} download>export</a>
    </p>`;
}

/** @param {any} app */
function sliderView(app) {
  const { all } = app.run;
  const shown = app.route.seq ?? all;
  return html`
    <div class="slider">
      <label for="seq">record ${count(shown)} of ${count(all)}</label>
      <input id="seq" type="range" min="1" max=${Math.max(1, all)} .value=${String(shown)} @input=${app.onSlide} />
      <button type="button" id="live" aria-pressed=${app.route.seq === null} @click=${() => app.go({ seq: null })}>live</button>
    </div>`;
}

/** @param {any} app */
function filterView(app) {
  const { filter, q } = app.route;
  return html`
    <form class="filters" role="search" @submit=${(/** @type {Event} */ e) => e.preventDefault()}>
      ${["", "failed", "running", "waiting"].map((each) => html`<button type="button" aria-pressed=${filter === each} data-filter=${each || "all"} @click=${() => app.go({ filter: each })}>${each || "all"}</button>`)}
      <label>search <input id="search" type="search" .value=${q} placeholder="step, item or text" @input=${app.onSearch} /></label>
      <span class="small" aria-live="polite">${app.foundSteps()}</span>
      <span class="views" role="group" aria-label="View">${["", "graph"].map((each) => html`<button type="button" aria-pressed=${app.route.view === each} data-view=${each || "tree"} @click=${() => app.go({ view: each })}>${each || "tree"}</button>`)}</span>
    </form>`;
}
