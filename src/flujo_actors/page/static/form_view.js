// @ts-check
// A question with the form that its schema makes: the server says which fields there are, and judges the answer.

import { html, nothing } from "./vendor/lit-html.js";
import { duration, moment, safe, shown } from "./format.js";

/**
 * @typedef {object} Field
 * @property {string} name
 * @property {string} kind buttons, choice, text, long, number, integer, date, time, datetime, boolean, list or json
 * @property {string} label
 * @property {string} [help]
 * @property {boolean} [required]
 * @property {boolean} [nullable]
 * @property {{value: unknown, label: string}[]} [options]
 * @property {any} [initial]
 * @property {number} [min]
 * @property {number} [max]
 */

/** @param {any} app @param {any} question */
export function questionView(app, question) {
  const { form } = question;
  const problem = app.answers.get(question.token);
  return html`
    <section class="question" aria-labelledby="asks-${question.token}">
      <h2 id="asks-${question.token}">${safe(question.step_name)} <small>waiting ${duration(app.nowMs() - (app.askedMs(question.path) ?? app.nowMs()))}</small></h2>
      <p class="asks">${safe(question.message)}</p>
      ${question.to ? html`<p class="small">for ${safe(question.to)}</p>` : nothing}
      ${question.due_ms ? html`<p class="small">until ${moment(question.due_ms)}</p>` : nothing}
      ${app.readOnly ? html`<p class="small">This page only shows runs; answer from a program.</p>` : formView(app, question, form)}
      ${problem ? html`<p class="problem" role="alert">${safe(problem)}</p>` : nothing}
    </section>`;
}

/** @param {any} app @param {any} question @param {{buttons?: {value: unknown, label: string}[], fields: Field[], whole: boolean, schema: unknown}} form */
function formView(app, question, form) {
  if (form.buttons) {
    return html`<div class="buttons">${form.buttons.map((each) => html`
      <button type="button" @click=${() => app.answer(question, each.value)}>${safe(each.label)}</button>`)}</div>`;
  }
  const submit = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const read = answerIn(/** @type {HTMLFormElement} */ (event.currentTarget), form);
    if ("problem" in read) app.refuse(question, read.problem);
    else app.answer(question, read.answer);
  };
  return html`
    <form @submit=${submit} novalidate>
      ${form.fields.map((field) => fieldView(question, field))}
      ${form.fields.some((field) => field.kind === "json") ? html`<details><summary>schema</summary><pre>${shown(form.schema)}</pre></details>` : nothing}
      <button type="submit">Answer</button>
    </form>`;
}

/** @param {any} question @param {Field} field */
function fieldView(question, field) {
  const id = `field-${question.token}-${field.name}`;
  return html`
    <p class="field">
      <label for=${id}>${safe(field.label)}${field.required ? " *" : ""}</label>
      ${control(id, field)}
      ${field.help ? html`<small id="${id}-help">${safe(field.help)}</small>` : nothing}
    </p>`;
}

/** @param {string} id @param {Field} field */
function control(id, field) {
  const { name, kind, initial = "" } = field;
  switch (kind) {
    case "boolean":
      return html`<select id=${id} name=${name}>${field.nullable ? html`<option value="">–</option>` : nothing}
        <option value="true" ?selected=${initial === true}>Yes</option><option value="false" ?selected=${initial === false}>No</option></select>`;
    case "choice":
      return html`<select id=${id} name=${name}>${field.nullable || !field.required ? html`<option value="">–</option>` : nothing}
        ${field.options?.map((each, i) => html`<option value=${String(i)} ?selected=${each.value === initial}>${safe(each.label)}</option>`)}</select>`;
    case "integer":
    case "number":
      return html`<input id=${id} name=${name} type="number" step=${kind === "integer" ? "1" : "any"} min=${field.min ?? nothing} max=${field.max ?? nothing} .value=${String(initial)} />`;
    case "date":
    case "time":
      return html`<input id=${id} name=${name} type=${kind} .value=${String(initial)} />`;
    case "datetime":
      return html`<input id=${id} name=${name} type="datetime-local" step="1" .value=${String(initial)} />`;
    case "list":
      return html`<textarea id=${id} name=${name} rows="3" placeholder="one each line" .value=${Array.isArray(initial) ? initial.join("\n") : ""}></textarea>`;
    case "json":
      return html`<textarea id=${id} name=${name} class="json" rows="6" spellcheck="false" .value=${initial === "" ? "" : JSON.stringify(initial, null, 2)}></textarea>`;
    case "long":
      return html`<textarea id=${id} name=${name} rows="4" .value=${String(initial)}></textarea>`;
    default:
      return html`<input id=${id} name=${name} type="text" .value=${String(initial)} />`;
  }
}

/** What a form says: the answer, or why there is none. @param {HTMLFormElement} element @param {{fields: Field[], whole: boolean}} form */
export function answerIn(element, form) {
  const said = new FormData(element);
  /** @type {Record<string, unknown>} */
  const answer = {};
  for (const field of form.fields) {
    const text = String(said.get(field.name) ?? "");
    try {
      const value = valueOf(field, text);
      if (value !== undefined) answer[field.name] = value;
    } catch (error) {
      return { problem: `${field.label}: ${error instanceof Error ? error.message : error}` };
    }
  }
  return { answer: form.whole ? answer[form.fields[0].name] ?? null : answer };
}

/** @param {Field} field @param {string} text @returns {unknown} */
function valueOf(field, text) {
  if (text === "" && field.kind !== "list" && (field.nullable || field.kind !== "text" || !field.required)) {
    return field.nullable ? null : undefined;
  }
  switch (field.kind) {
    case "boolean": return text === "true";
    case "choice": return field.options?.[Number(text)]?.value;
    case "integer":
    case "number": return numberOf(text);
    case "list": return text.split("\n").map((each) => each.trim()).filter(Boolean).map((each) => itemOf(field, each));
    case "json": return JSON.parse(text);
    case "datetime": return text.length === 16 ? `${text}:00` : text;
    default: return text;
  }
}

/** @param {any} field @param {string} text */
function itemOf(field, text) {
  return field.items === "number" || field.items === "integer" ? numberOf(text) : text;
}

/** @param {string} text */
function numberOf(text) {
  const value = Number(text);
  if (!Number.isFinite(value)) throw new Error(`${text} is not a number`);
  return value;
}
