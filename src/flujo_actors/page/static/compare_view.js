// @ts-check
// Two runs side by side, step by step.

import { repeat } from "./vendor/directives/repeat.js";
import { html, nothing } from "./vendor/lit-html.js";
import { dollars, duration, mark, safe, tokens } from "./format.js";

/** @param {any} app */
export function compareView(app) {
  const { compared, route } = app;
  return html`
    <header class="top">
      <nav aria-label="Where you are"><a href=${app.linkTo({ run: "" })}>runs</a> ▸ <a href=${app.linkTo({ run: route.run })}>${safe(route.run)}</a> and <a href=${app.linkTo({ run: route.other })}>${safe(route.other)}</a></nav>
    </header>
    ${app.notice()}
    <main>${compared ? tableView(compared) : html`<p class="small">loading …</p>`}</main>`;
}

/** @param {any} compared */
function tableView(compared) {
  const changed = compared.steps.filter((/** @type {any} */ each) => each.same === false);
  return html`
    <p>${changed.length ? `${changed.length} step${changed.length > 1 ? "s" : ""} with another output.` : "All outputs are the same."}</p>
    <table class="compared">
      <thead><tr><th scope="col">step</th><th scope="col">output</th><th scope="col">one</th><th scope="col">other</th></tr></thead>
      <tbody>${repeat(compared.steps, (/** @type {any} */ each) => each.path, (/** @type {any} */ each) => html`
        <tr class=${each.same === false ? "changed" : ""} data-path=${each.path}>
          <th scope="row">${safe(each.path)}</th>
          <td>${each.same === null ? "–" : each.same ? "same" : "changed"}</td>
          <td>${sideView(each.a)}</td><td>${sideView(each.b)}</td>
        </tr>`)}</tbody>
    </table>`;
}

/** @param {any} side */
function sideView(side) {
  if (!side) return html`<span class="small">not there</span>`;
  return html`<span class=${side.status}>${mark(side.status)}</span> ${duration(side.latency_ms)} ${tokens(side.tokens)} ${dollars(side.cost_usd)} ${side.attempts > 1 ? `${side.attempts} attempts` : nothing}`;
}
