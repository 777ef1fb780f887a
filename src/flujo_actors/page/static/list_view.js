// @ts-check
// All runs of the store: filters, search, and whether somebody is asked.

import { repeat } from "./vendor/directives/repeat.js";
import { html, nothing } from "./vendor/lit-html.js";
import { count, dollars, duration, mark, moment, safe, tokens } from "./format.js";

const STATUSES = ["running", "paused", "completed", "failed", "aborted", "abandoned"];

/** @param {any} app */
export function listView(app) {
  const { list, route } = app;
  return html`
    <header class="top">
      <h1>Runs</h1>
      <form class="filters" role="search" @submit=${(/** @type {Event} */ e) => e.preventDefault()}>
        <label>search <input id="search" type="search" .value=${route.q} placeholder="id or pipeline" @input=${app.onSearch} /></label>
        <label>status
          <select id="status" @change=${(/** @type {any} */ e) => app.go({ status: e.target.value })}>
            <option value="" ?selected=${!route.status}>all</option>
            ${STATUSES.map((each) => html`<option value=${each} ?selected=${each === route.status}>${each}${list.counts?.[each] ? ` (${count(list.counts[each])})` : ""}</option>`)}
          </select></label>
      </form>
      ${list.waiting ? html`<p class="asked"><a href=${app.linkTo({ run: "", status: "paused" })}>${count(list.waiting)} question${list.waiting > 1 ? "s" : ""} waiting</a></p>` : nothing}
    </header>
    ${app.notice()}
    <main>
      <table class="runs">
        <thead><tr><th scope="col">run</th><th scope="col">pipeline</th><th scope="col">status</th><th scope="col">begun</th><th scope="col">took</th><th scope="col">tokens</th><th scope="col">cost</th></tr></thead>
        <tbody>${repeat(list.runs, (/** @type {any} */ run) => run.run_id, (/** @type {any} */ run) => runLine(app, run))}</tbody>
      </table>
      ${list.runs.length || list.loading ? nothing : html`<p class="empty">${route.q || route.status ? "No run like that." : "No runs yet."}</p>`}
      ${list.cursor ? html`<p><button type="button" @click=${app.more}>More</button></p>` : nothing}
    </main>`;
}

/** @param {any} app @param {any} run */
function runLine(app, run) {
  return html`
    <tr class=${run.status} data-run=${run.run_id}>
      <th scope="row"><a href=${app.linkTo({ run: run.run_id })}>${safe(run.run_id)}</a></th>
      <td>${safe(run.pipeline)}</td>
      <td><span class="mark" aria-hidden="true">${mark(run.status)}</span> ${run.status}${run.message ? html` <span class="note">${safe(run.message)}</span>` : nothing}</td>
      <td>${moment(run.created_ms)}</td>
      <td>${run.ended_ms ? duration(run.ended_ms - run.created_ms) : ""}</td>
      <td class="number">${tokens(run.tokens)}</td>
      <td class="number">${dollars(run.cost_usd)}</td>
    </tr>`;
}
