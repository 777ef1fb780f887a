// The page: views of `app`, its state and keys. Untrusted text passes `safe` or `oneLine`.

import { html, nothing, render, svg } from "./vendor/lit-html.js";
import { axisOf, boxesOf, countsOf, declaredPath, duration, earlierKey, folded, inSight, isAcross, isAside, isCrowd, isWanted, lastName, laterKey, Outline, parentOf, PART, statusOf, stepOf, stepsOf, stopsOf, visibleLines } from "./fold.js";

let app;

// --- numbers, times, texts ---

const whole = new Intl.NumberFormat("en-US");

const count = (number) => whole.format(number);
function tokens(tokens) {
	if (!tokens) return "";
	if (tokens < 1000) return `${tokens}`;
	return tokens < 999_500 ? `${(tokens / 1000).toPrecision(3)} k` : `${(tokens / 1e6).toPrecision(3)} M`;
}

function dollars(dollars) {
	if (!dollars) return "";
	return `$${dollars >= 1 ? (dollars < 1000 ? dollars.toFixed(2) : count(Math.round(dollars))) : dollars >= 0.0001 ? dollars.toFixed(4) : dollars.toPrecision(2)}`;
}

const time = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

const clock = (ms) => (ms === null ? "" : time.format(ms));

const moment = (ms) => (ms === null || ms === undefined ? "" : `${day.format(ms)} ${time.format(ms)}`);

function span(ms) {
	const s = Math.max(0, Math.round(ms / 1000));
	if (s < 60) return `${s} s`;
	if (s < 5400) return `${Math.round(s / 60)} min`;
	return s < 129_600 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86_400)} d`;
}

const ago = (ms, now) => (now - ms < 1000 ? "now" : `${span(now - ms)} ago`);
const UNSAFE = /(?![\t\n])[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029\ufeff\ufff9-\ufffb]/g;
function safe(text) {
	return String(text).replaceAll("\r\n", "\n").replace(UNSAFE, (mark) => {
		const code = mark.charCodeAt(0);
		return code < 0x100 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
	});
}

const oneLine = (text) => safe(String(text).replace(/\s+/g, " ").trim());
function shown(value) {
	if (value === undefined) return "";
	return safe(typeof value === "string" ? value : JSON.stringify(value, null, 2));
}

const STATES = ({ success: "completed", failure: "failed", paused: "waiting" });
const stateOf = (status) => STATES[status] ?? status;

const ICONS = "completed running waiting failed blocked abandoned sleeping queued aborted cancelling pending skipped home list inbox search theme x plus minus check down right copy compare retry trash fork play more graph model tool book clock warn off fit system".split(" ");

const icon = (name, more = "") => html`<span class="i i-${name} ${more}" aria-hidden="true" .style=${`--k:${ICONS.indexOf(name)}`}></span>`;
const stateView = (state, word = state, more = "") => html`<span class="st ${state} ${more}">${icon(stateOf(state))}${word}</span>`;

const GENERATED = /^(?:[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f-]{27})$/;
const shortId = (id) => (GENERATED.test(id) ? id.slice(0, 6) : id.length > 24 ? `${id.slice(0, 23)}…` : id);
function titleOf(run) {
	const named = run.labels?.title ?? run.labels?.name;
	return named ?? (GENERATED.test(run.run_id) ? run.pipeline : run.run_id);
}

const initials = (name) => (name.match(/\p{L}+/gu) ?? [name]).slice(0, 2).map((each) => each[0].toUpperCase()).join("") || "?";
function chips(labels) {
	const shown = Object.entries(labels ?? {}).filter(([name]) => name !== "title" && name !== "name");
	return shown.map(([name, value]) => html`<a class="chip" href=${app.linkTo({ page: "", run: "", labels: [`${name}:${value}`] })} title="${oneLine(name)} ${oneLine(value)}" @click=${(e) => e.stopPropagation()}><i>${oneLine(name)}</i>${oneLine(value)}</a>`);
}
function factsView(value, kind = "facts", depth = 0, most = 60) {
	if (value === null || typeof value !== "object" || depth > 2) return html`<div class="text">${shown(value)}</div>`;
	if (Array.isArray(value)) return value.length && value.every((each) => typeof each !== "object") ? html`<div class="text">${safe(value.join(", "))}</div>` : html`<pre>${shown(value)}</pre>`;
	return html`<dl class=${kind}>${Object.entries(value).slice(0, most).map(([name, each]) => html`<dt>${oneLine(name)}</dt><dd>${each !== null && typeof each === "object" ? factsView(each, kind, depth + 1) : shown(each)}</dd>`)}${Object.keys(value).length > most ? html`<dt>…</dt><dd>${count(Object.keys(value).length - most)} more</dd>` : ""}</dl>`;
}

// --- requests, relative to any mount ---

class Refused extends Error {
	constructor(status, reply) {
		super(reply?.error ?? `the server answered ${status}`);
		this.status = status;
		this.reply = reply;
	}
}

function address(name, query = {}) {
	const given = Object.entries(query).flatMap(([key, value]) => [value].flat().map((each) => [key, each]));
	const kept = given.filter(([, value]) => value !== undefined && value !== "");
	const parameters = new URLSearchParams(kept.map(([key, value]) => [key, String(value)]));
	return kept.length ? `api/${name}?${parameters}` : `api/${name}`;
}

async function read(response) {
	const reply = response.status === 204 ? null : await response.json().catch(() => null);
	if (!response.ok) throw new Refused(response.status, reply);
	return reply;
}

async function get(name, query) {
	return read(await fetch(address(name, query), { headers: { accept: "application/json" } }));
}

async function post(name, body) {
	const headers = { "content-type": "application/json" };
	return read(await fetch(address(name), { method: "POST", headers, body: JSON.stringify(body) }));
}

// --- frame ---

const PAGES = [["overview", "Overview", "home"], ["", "Runs", "list"], ["inbox", "Inbox", "inbox"]];

function frame(view) {
	const { route, about } = app;
	const here = route.run ? "" : route.page;
	return html`
		<header class="bar-top">
			<a class="brand" href=${app.linkTo({ page: "overview", run: "" })}>Flujo</a>
			<nav class="nav" aria-label="Pages">${PAGES.map(([page, name, mark]) => html`
				<a href=${app.linkTo({ page, run: "" })} aria-current=${page === here ? "page" : nothing}>${icon(mark)}${name}${page === "inbox" && app.waiting ? html`<span class="count asks" title="open questions">${count(app.waiting)}</span>` : nothing}</a>`)}</nav>
			${searchView()}
			${Object.entries(about.scope ?? {}).map(([name, value]) => html`<span class="chip desk" title="Only runs with this label are shown">${icon("blocked", "s")}<i>${oneLine(name)}</i>${oneLine(value)}</span>`)}
			${iconButton("theme", "Light or dark", turnTheme)}
			${about.user ? html`<span class="face" role="img" aria-label=${safe(about.user)} title=${safe(about.user)}>${initials(about.user)}</span>` : nothing}
		</header>
		${app.connected ? nothing : offView()}
		${view}`;
}

function searchView() {
	const { route } = app;
	const hint = route.run && !route.other ? "Step, item or text" : "Run id or pipeline";
	if (app.phone && !app.searching) return html`<span class="end"></span>${iconButton("search", "Search", () => app.startSearch())}`;
	return html`<label class="holder soft find end">${icon("search", "s faint")}<input id="search" type="search" .value=${route.q} placeholder=${hint} aria-label="Search" @input=${app.onSearch} /><kbd class="desk">/</kbd></label>`;
}

function offView() {
	return html`<div class="strip-off" role="status">${icon("off")}<span class="grow"><b>Not connected for ${span(Date.now() - app.lostMs)}.</b> <span class="dim">The data may be old; the page is reconnecting.</span></span>${button("Reconnect", () => app.live?.retry())}</div>`;
}

function turnTheme() {
	const root = document.documentElement;
	const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
	root.dataset.theme = dark ? "light" : "dark";
	try {
		localStorage.setItem("flujo-theme", root.dataset.theme);
	} catch {
	}
}

function keptTheme() {
	try {
		const theme = localStorage.getItem("flujo-theme");
		if (theme) document.documentElement.dataset.theme = theme;
	} catch {
	}
}
const button = (text, click, kind = "", { id = nothing, title = nothing, off = false, key = nothing, type = "button" } = {}) => html`<button type=${type} class="btn ${kind}" id=${id} title=${title} ?disabled=${off} @click=${click}>${text}${key === nothing ? key : html`<kbd class="desk">${key}</kbd>`}</button>`;
const iconButton = (mark, title, click, kind = "quiet") => html`<button type="button" class="btn icon ${kind}" aria-label=${title} title=${title} @click=${click}>${icon(mark)}</button>`;
const marked = (mark, text) => html`${icon(mark)}${text}`;
const select = (label, chosen, options, choose) => html`<span class="pick"><select class="btn" aria-label=${label} @change=${(e) => choose(e.target.value)}>${optionsView(options, chosen)}</select>${icon("down", "s")}</span>`;
const optionsView = (options, chosen) => options.map(([value, text]) => html`<option value=${value} ?selected=${value === chosen}>${text}</option>`);
const meter = (share, kind = "") => html`<span class="meter ${kind}" .style=${`--w:${Math.max(0, Math.min(100, share * 100)).toFixed(0)}%`}><b></b></span>`;
const capital = (word) => word[0].toUpperCase() + word.slice(1);
const dotted = (...parts) => parts.filter(Boolean).join(" · ");
const many = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
const dim = (text) => html`<p class="dim">${text}</p>`;
const h3 = (text, end = nothing) => html`<div class="row"><h2 class="h3">${text}</h2><span class="end t12 row">${end}</span></div>`;
const section = (title, view, end) => html`<div class="sec col">${h3(title, end)}${view}</div>`;
const alarm = (text) => (text ? html`<p class="problem" role="alert">${safe(text)}</p>` : nothing);
const waitView = () => html`<span class="sk slow" .style=${"--w:60%"}></span>`;
const hiddenView = () => emptyView("blocked", "Content is not shown", "This page was mounted with content=False. Times, tokens and costs are complete.");
function emptyView(mark, title, why, action = nothing) {
	return html`<div class="empty">${icon(mark)}<h2>${title}</h2><p>${why}</p>${action}</div>`;
}
function segment(options, chosen, choose, label = "", data = "") {
	return html`<span class="seg" role="group" aria-label=${label}>${options.map(([value, text]) => html`<button type="button" aria-pressed=${value === chosen} data-filter=${data === "filter" ? value || "all" : nothing} data-view=${data === "view" ? value || "tree" : nothing} @click=${() => choose(value)}>${text}</button>`)}</span>`;
}
function tabsView(names, chosen, choose, view) {
	const keys = (e) => {
		const by = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
		if (!by) return;
		e.preventDefault();
		const at = (names.indexOf(chosen) + by + names.length) % names.length;
		choose(names[at]);
		e.currentTarget.children[at].focus();
	};
	return html`<div class="tabs" role="tablist" @keydown=${keys}>${names.map((each) => html`<button role="tab" type="button" tabindex=${each === chosen ? 0 : -1} aria-selected=${each === chosen} @click=${() => choose(each)}>${capital(each)}</button>`)}</div>
		<div role="tabpanel" tabindex="0" aria-label=${chosen}>${view}</div>`;
}
function sheetView(title, body, actions, submit) {
	return html`<dialog class="sheet" aria-label=${title} @cancel=${(e) => (e.preventDefault(), app.closeSheet())}>
		<form @submit=${(e) => (e.preventDefault(), submit(e))} novalidate>
			<header><h2>${title}</h2>${iconButton("x", "Close", app.closeSheet, "quiet end")}</header>
			<div class="asked">${body}</div>
			<div class="acts">${actions}</div>
		</form></dialog>`;
}

const copyButton = (text, what = "Copy") => iconButton("copy", what, () => app.copy(text), "quiet tiny");

// --- rows by key: those that stay keep focus and typed text ---

const lists = new Map();

function keyed(name, tag, properties, items, keyOf, view, { reuse = false } = {}) {
	if (!lists.has(name)) lists.set(name, { element: document.createElement(tag), rows: new Map() });
	const { element, rows } = lists.get(name);
	Object.assign(element, properties);
	const wanted = new Set(items.map(keyOf));
	const spare = [];
	for (const [key, row] of rows) {
		if (wanted.has(key)) continue;
		rows.delete(key);
		if (reuse) spare.push(row);
		else rangeOf(row).deleteContents();
	}
	for (const row of spare.splice(Math.max(0, items.length - rows.size))) rangeOf(row).deleteContents();
	let next = element.firstChild;
	for (const item of items) {
		const row = rows.get(keyOf(item)) ?? spare.pop() ?? { end: element.insertBefore(document.createComment(""), next) };
		if (row.part && row.part.startNode !== next) element.insertBefore(rangeOf(row).extractContents(), next);
		row.part = render(view(item), element, { renderBefore: row.end });
		rows.set(keyOf(item), row);
		next = row.end.nextSibling;
	}
	return element;
}

function rangeOf({ part, end }) {
	const range = document.createRange();
	range.setStartBefore(part.startNode);
	range.setEndAfter(end);
	return range;
}

// --- forms ---

const FEW = 4;

class Draft {
	constructor(form, given) {
		this.root = form.whole ? form.fields[0] : { name: "", kind: "object", required: true, fields: form.fields };
		this.schema = form.schema;
		this.given = given;
		this.raw = rawOf(this.root, given);
		this.json = null;
		this.wrong = new Map();
	}
	value() {
		this.wrong.clear();
		if (this.json !== null) return this.#parsed();
		const value = valueOf(this.root, this.raw, [], this.wrong);
		return this.wrong.size ? undefined : value ?? (this.root.nullable ? null : value);
	}

	#parsed() {
		try {
			return JSON.parse(this.json ?? "");
		} catch (error) {
			this.wrong.set("", `this is not JSON: ${error instanceof Error ? error.message : error}; the question is still open`);
			return undefined;
		}
	}
	refuse(sentence) {
		const paths = leavesOf(this.root, this.raw, []).map((path) => path.join(".")).sort((a, b) => b.length - a.length);
		const found = paths.find((path) => path && new RegExp(`(^|[^\\w])${escaped(path)}([^\\w]|$)`).test(sentence.replace(/[[\]/]+/g, ".")));
		this.wrong.clear();
		this.wrong.set(found ?? "", sentence);
	}
	changes() {
		if (this.given === undefined) return [];
		if (this.json !== null) return same(this.#quiet(), this.given) ? [] : ["json"];
		return changed(this.root, this.raw, this.given, []);
	}

	#quiet() {
		try {
			return JSON.parse(this.json ?? "");
		} catch {
			return undefined;
		}
	}

	show(tab) {
		if (tab === "json") this.json = JSON.stringify(valueOf(this.root, this.raw, [], new Map()) ?? null, null, 2);
		else {
			const value = this.#quiet();
			if (value !== undefined) this.raw = rawOf(this.root, value);
			this.json = null;
		}
		this.wrong.clear();
	}
}

const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

const same = (a, b) => JSON.stringify(sorted(a)) === JSON.stringify(sorted(b));

function sorted(value) {
	if (value === null || typeof value !== "object") return typeof value === "number" ? String(value) : value;
	return Array.isArray(value) ? value.map(sorted) : Object.fromEntries(Object.keys(value).sort().filter((key) => value[key] !== undefined && value[key] !== null).map((key) => [key, sorted(value[key])]));
}

function rawOf(field, value) {
	const given = value === undefined ? field.initial : value;
	switch (field.kind) {
		case "object": return (given === undefined || given === null) && !field.required ? null : Object.fromEntries(field.fields.map((each) => [each.name, rawOf(each, given?.[each.name])]));
		case "list": return Array.isArray(given) ? given.map((each) => rawOf(field.item, each)) : [];
		case "union": {
			const at = given === undefined ? 0 : Math.max(0, field.choices.findIndex((each) => fits(each, given)));
			return { at, raw: rawOf(field.choices[at], given) };
		}
		case "json": return given === undefined ? "" : JSON.stringify(given, null, 2);
		case "choice": return String(field.options.findIndex((each) => given !== undefined && same(each.value, given))).replace("-1", "");
		default: return given === undefined || given === null ? "" : String(given);
	}
}

function fits(field, value) {
	switch (field.kind) {
		case "object": return value !== null && typeof value === "object" && !Array.isArray(value) && field.fields.every((each) => (!each.required || each.name in value) && (each.kind !== "choice" || each.options.length > 1 || same(each.options[0].value, value[each.name])));
		case "list": return Array.isArray(value);
		case "integer": case "number": return typeof value === "number";
		case "boolean": return typeof value === "boolean";
		case "choice": return field.options.some((each) => same(each.value, value));
		case "json": return true;
		default: return typeof value === "string";
	}
}

function valueOf(field, raw, path, wrong) {
	const refuse = (why) => void wrong.set(path.join("."), why);
	switch (field.kind) {
		case "object": {
			if (raw === null) return field.nullable ? null : undefined;
			const pairs = field.fields.map((each) => [each.name, valueOf(each, raw[each.name], [...path, each.name], wrong)]);
			return Object.fromEntries(pairs.filter(([, value]) => value !== undefined));
		}
		case "list": return raw.map((each, i) => valueOf(field.item, each, [...path, i], wrong));
		case "union": return valueOf(field.choices[raw.at], raw.raw, path, wrong);
		case "json":
			if (raw === "") return field.required ? refuse("is required") : undefined;
			try {
				return JSON.parse(raw);
			} catch (error) {
				return refuse(`this is not JSON: ${error instanceof Error ? error.message : error}`);
			}
	}
	if (raw === "" && !(field.required && (field.kind === "text" || field.kind === "long"))) {
		if (field.nullable) return null;
		return field.required ? refuse("is required") : undefined;
	}
	switch (field.kind) {
		case "boolean": return raw === "true";
		case "choice": return field.options[Number(raw)]?.value;
		case "integer": return /^[+-]?\d+$/.test(raw.trim()) ? Number(raw) : refuse(`${raw} is not a whole number`);
		case "number": return Number.isFinite(Number(raw)) ? Number(raw) : refuse(`${raw} is not a number`);
		case "decimal": return /^[+-]?(\d+\.?\d*|\.\d+)$/.test(raw.trim().replaceAll(",", "")) ? raw.trim().replaceAll(",", "") : refuse(`${raw} is not a number`);
		case "datetime": return raw.length === 16 ? `${raw}:00` : raw;
		default: return raw;
	}
}

function leavesOf(field, raw, path) {
	if (field.kind === "object" && raw) return [path, ...field.fields.flatMap((each) => leavesOf(each, raw[each.name], [...path, each.name]))];
	if (field.kind === "list") return [path, ...raw.flatMap((each, i) => leavesOf(field.item, each, [...path, i]))];
	return field.kind === "union" ? leavesOf(field.choices[raw.at], raw.raw, path) : [path];
}

function changed(field, raw, given, path) {
	if (field.kind === "object" && raw) return field.fields.flatMap((each) => changed(each, raw[each.name], given?.[each.name], [...path, each.name]));
	const value = valueOf(field, raw, [], new Map());
	return same(value ?? null, (given === undefined ? field.initial : given) ?? null) ? [] : [path.join(".")];
}
function draftView(draft, id, title) {
	const tab = draft.json === null ? "form" : "json";
		const whole = draft.wrong.get("");
	return html`<div class="col gap3">${h3(title, segment([["form", "Form"], ["json", "JSON"]], tab, (to) => to !== tab && draft.show(to), "Form or JSON"))}
		${tab === "json" ? html`<textarea class="in json" rows="10" spellcheck="false" aria-label="JSON" .value=${draft.json ?? ""} @input=${(e) => (draft.json = e.target.value)}></textarea>
			${draft.schema ? html`<details><summary class="t12 dim">schema</summary><pre>${shown(draft.schema)}</pre></details>` : nothing}`
		: draft.root.kind === "object" && !draft.root.name ? fieldsView({ draft, id }, draft.root, draft.raw, draft.given, [])
		: fieldView({ draft, id }, draft.root, draft.raw, draft.given, [], (raw) => (draft.raw = raw))}
		${tab === "json" || draft.root.kind === "object" ? alarm(whole) : nothing}</div>`;
}

function fieldsView(at, field, raw, given, path) {
	return html`<div class="grid g2 gap3">${field.fields.map((each) => fieldView(at, each, raw[each.name], given?.[each.name], [...path, each.name], (to) => (raw[each.name] = to)))}</div>`;
}
function fieldView(at, field, raw, given, path, set) {
	const { draft } = at;
	const name = path.join(".") || field.name || "answer";
	const id = `field-${at.id}-${name}`;
	const wrong = draft.wrong.get(path.join("."));
	const put = (to) => (set(to), draft.wrong.delete(path.join(".")));
	const type = html`<code>${oneLine(field.type ?? field.kind)}${field.required ? "" : ", optional"}</code>`;
	if (field.kind === "object" || field.kind === "list" || field.kind === "union") return nestView(at, { ...field, id }, raw, given, path, put, type, wrong);
	const moved = draft.given !== undefined && path.length > 0 && changed(field, raw, given, path).length > 0;
	const was = moved ? html`<span class="help was">was ${given === undefined || given === null || given === "" ? "empty" : oneLine(shown(given))} · <button type="button" @click=${() => put(rawOf(field, given))}>undo</button></span>` : nothing;
	const help = wrong ? html`<span class="help problem" role="alert" id="${id}-help">${icon("warn", "s")}${path.length ? `${oneLine(name)}: ` : ""}${safe(wrong)}</span>` : moved ? was : field.help ? html`<span class="help" id="${id}-help">${safe(field.help)}</span>` : nothing;
	const wide = field.kind === "long" || field.kind === "json" ? "whole" : "";
	return html`<div class="field ${wide} ${moved ? "changed" : ""} ${wrong ? "wrong" : ""}"><label class="lab" for=${id} id="${id}-label">${oneLine(field.label)} ${type}</label>${control(id, name, field, raw, put, Boolean(wrong))}${help}</div>`;
}
function nestView(at, field, raw, given, path, put, type, wrong) {
	const error = alarm(wrong);
	const title = html`<legend class="lab">${oneLine(field.label)} ${field.kind === "list" ? html`<code>list of ${raw.length}</code>` : type}</legend>`;
	if (field.kind === "union") {
		const options = field.choices.map((each, i) => [String(i), oneLine(each.label || each.type || each.kind)]);
		const inner = { ...field.choices[raw.at], label: field.label, required: field.required };
		return html`<fieldset class="whole group col">${title}<div>${segment(options, String(raw.at), (to) => put({ at: Number(to), raw: rawOf(field.choices[Number(to)], undefined) }), oneLine(field.label))}</div>
			${inner.kind === "object" ? fieldsView(at, inner, (raw.raw ??= rawOf({ ...inner, required: true }, {})), given, path) : fieldView(at, inner, raw.raw, given, path, (to) => (raw.raw = to))}${error}</fieldset>`;
	}
	if (field.kind === "object") {
		if (raw === null) return html`<div class="whole">${button(marked("plus", `Add ${oneLine(field.label)}`), () => put(rawOf({ ...field, required: true }, {})), "quiet")}</div>`;
		return html`<fieldset class="whole group col">${title}${fieldsView(at, field, raw, given, path)}${field.required ? nothing : html`<div>${button(marked("x", `Remove ${oneLine(field.label)}`), () => put(null), "quiet")}</div>`}${error}</fieldset>`;
	}
	const cut = (i) => put(raw.filter((_, j) => j !== i));
	return html`<fieldset class="whole group col">${title}
		${raw.map((each, i) => html`<div class="rowed">${itemView(at, field.item, each, given?.[i], [...path, i], (to) => (raw[i] = to))}${iconButton("x", `Remove row ${i + 1}`, () => cut(i))}</div>`)}
		<div>${button(marked("plus", "Add a row"), () => put([...raw, rawOf({ ...field.item, required: true }, undefined)]), "quiet")}</div>${error}</fieldset>`;
}

function itemView(at, item, raw, given, path, set) {
	if (item.kind !== "object" || raw === null) return fieldView(at, { ...item, label: item.label || String(path.at(-1)) }, raw, given, path, set);
	return html`<div class="across2">${item.fields.map((each) => fieldView(at, each, raw[each.name], given?.[each.name], [...path, each.name], (to) => (raw[each.name] = to)))}</div>`;
}

const INPUTS = { date: "date", time: "time", datetime: "datetime-local" };

function control(id, name, field, raw, put, wrong) {
	const { kind } = field;
	const typed = (e) => put(e.target.value);
	const about = wrong || field.help ? `${id}-help` : nothing;
	if (kind === "boolean") return choice(id, name, [["true", "Yes"], ["false", "No"]], field, raw, put);
	if (kind === "choice") return choice(id, name, field.options.map((each, i) => [String(i), oneLine(each.label)]), field, raw, put);
	if (kind === "long" || kind === "json") return html`<textarea class="in ${kind}" id=${id} name=${name} rows="4" spellcheck=${kind === "long"} .value=${raw} aria-invalid=${wrong} aria-describedby=${about} @input=${typed}></textarea>`;
	const mode = { integer: "numeric", number: "decimal", decimal: "decimal" }[kind] ?? nothing;
	return html`<input class="in" id=${id} name=${name} type=${INPUTS[kind] ?? "text"} inputmode=${mode} step=${kind === "datetime" ? "1" : nothing} .value=${raw} aria-invalid=${wrong} aria-describedby=${about} @input=${typed} />`;
}
function choice(id, name, options, field, raw, put) {
	if (options.length <= FEW && field.required) return html`<span class="seg" role="radiogroup" id=${id} aria-labelledby="${id}-label">${options.map(([value, text]) => html`<button type="button" role="radio" aria-checked=${value === raw} aria-pressed=${value === raw} name=${name} @click=${() => put(value)}>${text}</button>`)}</span>`;
	return html`<select class="in" id=${id} name=${name} @change=${(e) => put(e.target.value)}>${field.required && raw !== "" ? nothing : html`<option value="" ?selected=${raw === ""}>–</option>`}${optionsView(options, raw)}</select>`;
}

// --- questions ---

function draftOf(question) {
	const known = app.drafts.get(question.token);
	if (known) return known;
	const { form } = question;
	const made = { fields: form.fields.length ? new Draft(form, question.given ?? undefined) : null, comment: "", denying: null, problem: "", busy: false };
	app.drafts.set(question.token, made);
	return made;
}

function questionView(question) {
	const draft = draftOf(question);
	const locked = app.about.read_only ? "This page only shows runs; answer from a program." : question.may_answer === false ? "You may not answer this question." : "";
	const more = app.fetched("question", { token: question.token });
	const now = app.nowMs();
	const left = question.due_ms ? question.due_ms - now : null;
	return html`
		<section class="question" aria-labelledby="asks-${question.token}" data-token=${question.token} @keydown=${(e) => onAnswerKey(question, e)}>
			<div class="asked">
				<div class="col"><div class="row wrap t12"><span class="st waiting pill">${icon("waiting")}${question.pill}</span>${left === null ? nothing : html`<span class="ask">${icon("clock", "s")} ${left > 0 ? `${span(left)} left` : "overdue"}</span><span class="dim">until ${moment(question.due_ms)}</span>`}${question.to ? html`<span class="dim">for ${safe(question.to)}</span>` : nothing}</div>
					<h1 id="asks-${question.token}">${safe(question.asks)}</h1>${aboutView(question)}</div>
				${factStrip(question.facts, more)}
				${more?.reasoning ? html`<div class="col">${h3("Why the agent asks", html`<a class="link m" href=${app.linkTo({ run: question.run_id, step: question.step_path, tab: "conversation" })}>Whole conversation</a>`)}<p class="quote">${safe(more.reasoning)}</p></div>` : nothing}
				${locked ? dim(locked) : draft.fields ? draftView(draft.fields, question.token, question.kind === "tool" ? "Arguments of the tool" : "Your answer") : nothing}
				${locked || !question.comment ? nothing : commentView(question, draft)}
				${alarm(draft.problem)}
			</div>
			${locked ? nothing : answersView(question, draft)}
		</section>`;
}

function aboutView(question) {
	const run = html`<a href=${app.linkTo({ run: question.run_id })}>${safe(question.title ?? question.pipeline ?? "the run")}</a> <span class="mono faint">${safe(shortId(question.run_id))}</span>`;
	if (question.kind === "tool") return html`<p class="dim">Agent <b class="m">${oneLine(question.step_name)}</b> wants to call the tool <code>${oneLine(question.tool?.name ?? "")}</code> in ${run}.${question.tool?.description ? html` ${safe(question.tool.description)}` : nothing}</p>`;
	return html`<p class="dim">Step <b class="m">${oneLine(question.step_name)}</b> of ${run}.</p>`;
}
function factStrip(facts, more) {
	const flat = Object.entries(facts ?? {}).filter(([, value]) => value === null || typeof value !== "object");
	if (flat.length) return html`<dl class="strip well">${flat.slice(0, 8).map(([name, value]) => html`<div><dt>${oneLine(name)}</dt><dd>${oneLine(String(value))}</dd></div>`)}</dl>`;
	if (!more?.input?.known || more.reasoning) return nothing;
	return html`<div class="col">${h3("To be decided")}<div class="well">${factsView(more.input.value, "facts", 0, 12)}</div></div>`;
}

function commentView(question, draft) {
	const id = `comment-${question.token}`;
	const needed = draft.denying !== null || question.comment.required;
	const type = (e) => ((draft.comment = e.target.value), (draft.problem = ""));
	return html`<div class="field ${needed && draft.problem && !draft.comment ? "wrong" : ""}"><label class="lab" for=${id}>${question.comment.name === "reason" ? "Reason" : "Comment"} <code>${needed ? `required to ${question.kind === "tool" ? "deny" : "reject"}` : "optional"}</code></label><textarea class="in" id=${id} rows="2" placeholder=${question.kind === "tool" ? "The agent reads this. It is kept with the answer." : "It is kept with the answer."} .value=${draft.comment} @input=${type}></textarea></div>`;
}

function answersView(question, draft) {
	const { options } = question;
	const send = (answer) => app.sendAnswer(question, answer);
	if (!options.length) {
		if (question.form.buttons) return html`<div class="acts buttons">${question.form.buttons.map((each, i) => button(oneLine(each.label), () => send(each.value), i ? "" : "primary"))}</div>`;
		return html`<div class="acts">${button("Answer", () => mainAction(question), "primary", { key: "Ctrl ↵", type: "submit" })}</div>`;
	}
	if (draft.denying !== null) return html`<div class="acts">${button(oneLine(draft.denying.label), () => choose(question, draft.denying), "danger solid")}${button("Back", () => (draft.denying = null), "quiet")}</div>`;
	const changes = question.kind === "tool" ? draft.fields?.changes().length ?? 0 : 0;
	const wrong = draft.fields?.wrong.size ?? 0;
	return html`<div class="acts">${options.map((each) => optionView(question, draft, each, changes))}${wrong ? html`<span class="end t12 problem">${many(wrong, "field")} to correct</span>` : nothing}</div>`;
}

function optionView(question, draft, option, changes) {
	const first = question.options.find((each) => each.kind === "approve") === option;
	const rejects = option.kind === "reject";
	const asks = rejects && (question.kind === "tool" || question.comment?.required);
	const start = () => (asks ? startDenying(question, option) : choose(question, option));
	const text = first && changes ? `${oneLine(option.label)} with ${many(changes, "change")}` : `${oneLine(option.label)}${asks ? "…" : ""}`;
	return html`<button type="button" class="btn ${first ? "primary" : rejects ? "danger" : option.kind === "defer" ? "quiet" : ""}" data-option=${option.name} @click=${start}>${text}${first ? html`<kbd class="desk">Ctrl ↵</kbd>` : nothing}</button>
		${first && changes ? html`${button(`${oneLine(option.label)} as asked`, () => app.sendAnswer(question, { option: option.name }))}` : nothing}`;
}
function startDenying(question, option = question.options.find((each) => each.kind === "reject")) {
	if (!option) return;
	draftOf(question).denying = option;
	app.focus(`#comment-${CSS.escape(question.token)}`);
}

function choose(question, option) {
	const draft = draftOf(question);
	const rejects = option.kind === "reject";
	const comment = draft.comment.trim();
	if (rejects && draft.denying && !comment) {
		draft.problem = "a reason is required here; the question is still open";
		app.focus(`#comment-${CSS.escape(question.token)}`);
		return;
	}
	const answer = { option: option.name };
	if (comment && (question.comment?.name !== "reason" || rejects)) answer[question.comment.name] = comment;
	if (draft.fields && !rejects && option.kind !== "stop" && !fill(question, draft, answer)) return;
	app.sendAnswer(question, answer);
}
function fill(question, draft, answer) {
	if (question.kind === "tool" && !draft.fields.changes().length) return true;
	const value = draft.fields.value();
	if (draft.fields.wrong.size) return void app.focus(WRONG);
	if (question.kind === "tool") answer.arguments = value;
	else Object.assign(answer, value);
	return true;
}

const WRONG = ".question .wrong :is(input, textarea, select)";

function mainAction(question) {
	const first = question.options.find((each) => each.kind === "approve") ?? question.options[0];
	const draft = draftOf(question);
	if (draft.denying) return choose(question, draft.denying);
	if (first) return choose(question, first);
	if (!draft.fields) return undefined;
	const value = draft.fields.value();
	return draft.fields.wrong.size ? app.focus(WRONG) : app.sendAnswer(question, value === undefined ? null : value);
}

function onAnswerKey(question, e) {
	if (e.key !== "Enter") return;
	const single = e.target instanceof HTMLInputElement;
	if (e.ctrlKey || e.metaKey || (single && !question.options.length)) {
		e.preventDefault();
		mainAction(question);
	}
}

// --- inbox ---

function inboxView() {
	const { questions, loading, answered } = app.inbox;
	const past = app.route.tab === "answered";
	const chosen = past ? null : app.chosenQuestion();
	const phoneOne = app.phone && app.route.token;
	const groups = [["You may answer", questions.filter((each) => each.may_answer !== false)], ["Others may answer", questions.filter((each) => each.may_answer === false)]];
	const lines = groups[1][1].length ? groups.flatMap(([title, some]) => (some.length ? [{ token: title, title }, ...some] : [])) : questions;
	return html`<main class="inbox">
		${phoneOne ? nothing : html`<aside aria-label="Questions" tabindex="-1"><div class="row panel-head"><h1>Inbox</h1><span class="end">${segment([["", `Open ${count(questions.length)}${app.inbox.cursor ? "+" : ""}`], ["answered", "Answered"]], past ? "answered" : "", (tab) => app.go({ tab, token: "" }), "Questions")}</span></div>
			${past ? keyed("answered", "div", {}, answered, (each) => `${each.run_id} ${each.seq}`, answeredLine) : keyed("questions", "div", {}, lines, (each) => each.token, (each) => ("form" in each ? questionLine(each, each === chosen) : html`<h2 class="h3">${each.title}</h2>`))}
			${(past ? app.inbox.next : app.inbox.cursor) ? html`<p class="panel-head">${button("More", () => app.loadInbox({ more: true }))}</p>` : nothing}
			${past ? (answered.length ? nothing : emptyView("inbox", "No answer yet", "Answers of the latest runs appear here.")) : questions.length || loading || !app.phone ? nothing : noQuestions()}</aside>`}
		${past || (app.phone && !phoneOne) ? nothing : html`<section tabindex="-1" aria-label="Question">${phoneOne ? pager(questions, chosen) : nothing}${chosen ? questionView(chosen) : loading ? nothing : noQuestions()}</section>`}
		${chosen && !app.phone ? railView(chosen) : nothing}</main>`;
}

const answeredLine = (each) => html`<a class="q" href=${app.linkTo({ run: each.run_id, step: each.step })}>${answerLine(each)}<span class="t12 dim cut">${oneLine(each.title)} · <span class="mono">${safe(shortId(each.run_id))}</span></span></a>`;

const noQuestions = () => emptyView("completed", "No question waits", "New questions appear here and in the title of the tab.");

function questionLine(question, on = false) {
	const left = question.due_ms ? question.due_ms - app.nowMs() : null;
	return html`<a class="q ${on ? "on" : ""}" href=${app.linkTo({ page: "inbox", run: "", token: question.token })} aria-current=${on ? "true" : nothing}><span class="m cut">${oneLine(question.asks)}</span>
		<span class="row t12 dim"><span class="st waiting">${icon("waiting", "s")}</span><span class="cut grow">${oneLine(question.step_name)} · ${oneLine(question.pipeline ?? "")} · <span class="mono">${safe(shortId(question.run_id))}</span></span><span class=${left !== null && left < 3_600_000 ? "ask" : ""}>${left === null ? "no deadline" : left > 0 ? `${span(left)} left` : "overdue"}</span></span></a>`;
}

function pager(questions, chosen) {
	const at = questions.indexOf(chosen);
	const next = questions[(at + 1) % Math.max(1, questions.length)];
	return html`<div class="row panel-head"><a class="btn quiet" href=${app.linkTo({ page: "inbox", run: "" })}>‹ Inbox</a><span class="end dim">${at + 1} of ${count(questions.length)}</span>${next && next !== chosen ? html`<a class="btn icon quiet" aria-label="Next question" href=${app.linkTo({ page: "inbox", run: "", token: next.token })}>${icon("down")}</a>` : nothing}</div>`;
}

function railView(question) {
	const more = app.fetched("question", { token: question.token });
	const now = app.nowMs();
	return html`<aside class="rail" aria-label="About the question">
		<div class="col"><h2 class="h3">Who may answer</h2>${app.about.user ? html`<div class="row"><span class="face">${initials(app.about.user)}</span><span>You, ${question.may_answer === false ? "no" : safe(app.about.user)}</span></div>` : nothing}<div class="dim">${question.to ? html`Asked of <b class="m">${safe(question.to)}</b>` : "Every user of this page"}</div></div>
		${question.due_ms ? html`<div class="col"><h2 class="h3">Deadline</h2><div>${clock(question.due_ms)} <span class="dim">· in ${span(question.due_ms - now)}</span></div>${question.asked_ms ? html`${meter((now - question.asked_ms) / (question.due_ms - question.asked_ms), "waiting full")}` : nothing}</div>` : nothing}
		${more?.steps?.length ? html`<div class="col"><h2 class="h3">So far in this run</h2><ol class="col">${more.steps.map((each) => html`<li class="row">${stateView(each.status, oneLine(each.name))}<span class="end t12 dim">${each.latency_ms ? duration(each.latency_ms) : ""}</span></li>`)}</ol></div>` : nothing}</aside>`;
}

// --- sheets ---

function sheet() {
	const { name } = app.sheet;
	return name === "start" ? startSheet() : name === "compare" ? compareSheet() : bulkSheet(name);
}

function startSheet() {
	const { sheet } = app;
	const known = app.about.pipelines;
	const pick = html`<div class="field"><label class="lab" for="start-pipeline">Pipeline</label><select class="in" id="start-pipeline" @change=${(e) => app.startWith(e.target.value)}>${optionsView(known.map((each) => [each, oneLine(each)]), sheet.pipeline)}</select></div>`;
	const labels = html`<div class="field"><label class="lab" for="start-labels">Labels <code>optional</code></label><input class="in" id="start-labels" placeholder="tenant=acme line=home" .value=${sheet.labels ?? ""} @input=${(e) => (sheet.labels = e.target.value)} /></div>`;
	const body = html`${pick}${sheet.draft ? draftView(sheet.draft, "start", "Input") : nothing}${app.about.labels ? labels : nothing}${alarm(sheet.problem)}`;
	return sheetView("Start a run", body, html`${submit("Start", "primary", sheet.busy)}${button("Close", app.closeSheet, "quiet")}`, () => app.startRun());
}

function compareSheet() {
	const { sheet } = app;
	const runs = (app.fetched("runs", { q: sheet.q, pipeline: sheet.q ? "" : app.run.info?.pipeline, limit: 50 })?.runs ?? sheet.runs ?? []).filter((run) => run.run_id !== app.route.run);
	sheet.runs = runs;
	const body = html`<label class="holder soft">${icon("search", "s faint")}<input id="other" type="search" placeholder="Run id or pipeline" aria-label="Search a run" .value=${sheet.q ?? ""} @input=${(e) => (sheet.q = e.target.value)} /></label>
		<div>${keyed("others", "div", {}, runs, (run) => run.run_id, (run) => cardView(run, { run: app.route.run, other: run.run_id }))}</div>${runs.length ? nothing : dim("No other run like that.")}`;
	return sheetView("Compare with", body, button("Close", app.closeSheet, "quiet"), () => runs.length && (app.closeSheet(), app.go({ other: runs[0].run_id })));
}

function bulkSheet(name) {
	const { sheet } = app;
	const { runs, where, results, preview = { title: capital(name), sentence: "Counting …" } } = sheet;
	const left = (run) => results?.[run.run_id] ?? (preview.fit?.includes(run.run_id) === false ? "left out" : "");
	const body = html`<p><b class="m">${preview.sentence}</b> <span class="dim">${preview.note}</span></p>
		${where ? dim(`All runs that match: ${filterText() || "every run"}.`) : html`<table class="tbl dense fixed preview"><tbody>${runs.map((run) => html`<tr><td>${stateView(run.state)}</td><td><span class="cut">${oneLine(titleOf(run))} <span class="mono faint">${safe(shortId(run.run_id))}</span></span></td><td class="num dim">${left(run)}</td></tr>`)}</tbody></table>`}
		${name === "delete" ? nothing : html`<div class="field"><label class="lab" for="bulk-reason">Reason <code>optional</code></label><input class="in" id="bulk-reason" @input=${(e) => (sheet.reason = e.target.value)} /></div>`}${alarm(sheet.problem)}`;
	return sheetView(preview.title, body, html`${results ? nothing : submit(preview.submit ?? capital(name), name === "retry" ? "primary" : "danger solid", !preview.count || sheet.busy)}${button("Close", app.closeSheet, "quiet")}`, () => app.bulk(name));
}

const submit = (text, kind, off) => button(text, undefined, kind, { off, type: "submit" });

// --- runs ---

const RUN_STATES = ["waiting", "running", "failed", "blocked", "abandoned", "queued", "sleeping", "cancelling", "aborted", "completed"];
const DAYS = [["", "Any time"], ["1", "Last 24 hours"], ["7", "Last 7 days"], ["30", "Last 30 days"]];
const SPARE = 6;

function listView() {
	const { list, route } = app;
	const filtered = route.q || route.status || route.pipeline || route.days || route.labels.length;
	return html`
		<main class="page" id="list" tabindex="-1" @scroll=${app.onListScroll}>
			<div class="title"><h1>Runs</h1><span class="dim desk">${filtered ? `${count(list.runs.length)}${list.cursor ? "+" : ""} found` : allCounted(list.counts)}</span><span class="end row">${startButton()}</span></div>
			${app.notice()}
			${filtersView()}
			<section class="card">${list.runs.length ? (app.phone ? cardsView() : tableView()) : list.loading ? html`<div class="empty slow"><span class="sk" .style=${"--w:60%"}></span></div>` : nothingView(filtered)}</section>
			${list.cursor ? html`<p class="above">${button("More", app.more)}</p>` : nothing}
			${app.chosen.size ? bulkView() : nothing}
		</main>`;
}

const allCounted = (counts) => `${count(Object.values(counts).reduce((sum, each) => sum + each, 0))} in all`;

const startButton = () => (app.about.pipelines?.length && !app.about.read_only ? button(marked("play", "Start a run"), () => app.openSheet("start"), "primary", { id: "start" }) : nothing);

function filtersView() {
	const { route, list } = app;
	const all = Object.values(list.counts).reduce((sum, each) => sum + each, 0);
	const shown = RUN_STATES.filter((each) => list.counts[each] || each === route.status);
	return html`<div class="row wrap filters"><div class="scroll-x"><span class="seg" role="group" aria-label="State"><button type="button" aria-pressed=${!route.status} @click=${() => app.go({ status: "" })}>All <span class="faint">${count(all)}</span></button>
			${shown.map((each) => html`<button type="button" data-state=${each} aria-pressed=${route.status === each} @click=${() => app.go({ status: each })}><span class="st ${each}">${icon(each, "s")}</span>${capital(each)} <span class="faint">${count(list.counts[each] ?? 0)}</span></button>`)}</span></div>
		<span class="row end wrap">
			${select("Pipeline", route.pipeline, [["", "Any pipeline"], ...list.pipelines.map((each) => [each, oneLine(each)])], (pipeline) => app.go({ pipeline }))}
			${select("Begun", route.days, DAYS, (days) => app.go({ days }))}
			${route.labels.map((each) => html`<button type="button" class="chip on" title="Remove this filter" @click=${() => app.go({ labels: route.labels.filter((other) => other !== each) })}><i>${oneLine(each.split(":")[0])}</i>${oneLine(each.slice(each.indexOf(":") + 1))}${icon("x")}</button>`)}
			<form class="desk" @submit=${(e) => app.addLabel(e)}><label class="holder soft label-in">${icon("plus", "s faint")}<input name="label" placeholder="label:value" aria-label="Filter by label" size="10" /></label></form>
		</span></div>`;
}

function rowsInSight(px) {
	const { top, height } = app.listScroll;
	const all = app.list.runs.length;
	const first = Math.max(0, Math.min(all - 1, Math.floor((top - 160) / px) - SPARE));
	const end = Math.min(all, Math.ceil((top + height) / px) + SPARE);
	app.sawRuns(first, end);
	return { rows: app.list.runs.slice(first, end), before: first * px, after: (all - end) * px };
}

function tableView() {
	const { rows, before, after } = rowsInSight(40);
	const all = app.list.runs;
	const some = app.chosen.size > 0;
	return html`<table class="tbl fixed runs">
		<colgroup><col class="w1" /><col class="w2" /><col class="w3" /><col /><col class="w4 wide" /><col class="w5 wide" /><col class="w6" /><col class="w7" /><col class="w8 wide" /><col class="w9" /></colgroup>
		<thead><tr><th scope="col"><input type="checkbox" class="tick" aria-label="Choose all" .checked=${some && app.chosen.size === all.length} .indeterminate=${some && app.chosen.size < all.length} @change=${() => app.chooseAll()} /></th><th scope="col">State</th><th scope="col">Run</th><th scope="col">Now</th><th scope="col" class="wide">Pipeline</th><th scope="col" class="wide">Labels</th><th scope="col" class="num">Begun</th><th scope="col" class="num">Worked</th><th scope="col" class="num wide">Tokens</th><th scope="col" class="num">Cost</th></tr></thead>
		${keyed("runs", "tbody", {}, [{ run_id: "before", px: before }, ...rows, { run_id: "after", px: after }], (run) => run.run_id, (run) => (run.px === undefined ? rowView(run) : run.px ? html`<tr aria-hidden="true" .style=${`height:${run.px}px`}></tr>` : nothing))}</table>`;
}
const wakesIn = (run) => (!run.wakes_ms ? "" : run.reason ? `until ${moment(run.wakes_ms)}` : run.wakes_ms > app.nowMs() ? `wakes in ${span(run.wakes_ms - app.nowMs())}` : "due now");
function nowOf(run) {
	const line = app.nows.get(run.run_id)?.text;
	return run.message || dotted(run.reason, wakesIn(run)) || line || "";
}

const workedOf = (run) => (run.worked_ms ? duration(run.worked_ms) : run.ended_ms ? duration(run.ended_ms - run.created_ms) : "–");

function rowView(run) {
	const id = shortId(run.run_id);
	const title = titleOf(run);
	const on = app.chosen.has(run.run_id);
	return html`
		<tr class="${run.state} ${on ? "on" : ""}" data-run=${run.run_id} @click=${(e) => app.openRow(e, run.run_id)}>
			<td><input type="checkbox" class="tick" aria-label="Choose ${oneLine(title)} ${safe(id)}" .checked=${on} @change=${() => app.choosesRun(run.run_id)} /></td>
			<td>${stateView(run.state)}</td>
			<td><span class="cut"><a class="m" href=${app.linkTo({ run: run.run_id })}>${oneLine(title)}</a>${id === title ? nothing : html` <button type="button" class="copy-id" title="Copy ${safe(run.run_id)}" @click=${(e) => (e.stopPropagation(), app.copy(run.run_id))}>${safe(id)}</button>`}</span></td>
			<td class="dim"><span class="cut note" title=${oneLine(nowOf(run))}>${oneLine(nowOf(run))}</span></td>
			<td class="dim wide"><span class="cut">${oneLine(run.pipeline)}</span></td>
			<td class="wide"><span class="cut">${chips(run.labels)}</span></td>
			<td class="num dim" title=${moment(run.created_ms)}>${ago(run.created_ms, app.nowMs())}</td>
			<td class="num">${workedOf(run)}</td><td class="num wide">${tokens(run.tokens) || "–"}</td><td class="num">${dollars(run.cost_usd) || "–"}</td>
		</tr>`;
}

function cardsView() {
	const { rows, before, after } = rowsInSight(117);
	return html`<div .style=${`padding-top:${before}px;padding-bottom:${after}px`}>${keyed("cards", "div", { className: "runs" }, rows, (run) => run.run_id, (run) => cardView(run))}</div>`;
}

function cardView(run, to = { run: run.run_id }) {
	const labels = Object.entries(run.labels ?? {}).filter(([name]) => name !== "title").slice(0, 2);
	return html`<a class="rcard ${app.chosen.has(run.run_id) ? "on" : ""}" href=${app.linkTo(to)} data-run=${run.run_id} @click=${app.closeSheet}>
		<span class="row">${stateView(run.state)}<span class="end t12 dim">${ago(run.created_ms, app.nowMs())}</span></span>
		<span class="row"><span class="m cut grow">${oneLine(titleOf(run))}</span><span class="mono faint">${shortId(run.run_id) === titleOf(run) ? nothing : safe(shortId(run.run_id))}</span></span>
		<span class="t12 dim cut">${oneLine(nowOf(run)) || oneLine(run.pipeline)}</span>
		<span class="row"><span class="cut">${labels.map(([name, value]) => html`<span class="chip"><i>${oneLine(name)}</i>${oneLine(value)}</span> `)}</span><span class="end t12 dim">${run.state === "queued" || run.state === "blocked" ? "not started" : dotted(workedOf(run), dollars(run.cost_usd))}</span></span></a>`;
}

function filterText() {
	const { status, q, pipeline, labels, days } = app.route;
	return [status && `state ${status}`, q, pipeline, ...labels, days && `last ${many(Number(days), "day")}`].filter(Boolean).map(oneLine).join(", ");
}

function nothingView(filtered) {
	if (!filtered) return emptyView("play", "No runs yet.", "This store is empty. A run appears here as soon as it begins, from any process.", html`<pre class="out">flujo = Flujo(pipeline, store=store)\nawait flujo.run_async(data)</pre>${startButton()}`);
	return emptyView("search", "No run like that.", html`The filter is ${filterText() || "the time"}.`, button("Clear the filter", () => app.go({ status: "", q: "", pipeline: "", days: "", labels: [] })));
}

function bulkView() {
	const runs = app.list.runs.filter((run) => app.chosen.has(run.run_id));
	const by = Object.entries(Object.groupBy?.(runs, (run) => run.state) ?? {}).map(([state, some]) => `${some?.length} ${state}`).join(", ");
	const all = app.everyMatch && app.list.cursor;
	const act = (name) => () => app.openSheet(name, { runs, where: all ? app.filters(app.route) : null });
	const may = !app.about.read_only;
	return html`<div class="bulk" role="toolbar" aria-label="Chosen runs"><b class="m">${all ? "All that match" : `${count(app.chosen.size)} chosen`}</b><span class="dim t12">${all ? filterText() : by}</span>${may && !all && app.list.cursor && runs.length === app.list.runs.length ? button("Choose all that match", () => (app.everyMatch = true), "quiet") : nothing}
		${button(marked("compare", "Compare"), () => app.compareChosen(), "", { id: "compare-two", off: runs.length !== 2, title: runs.length === 2 ? "Compare the two runs" : "Choose exactly two" })}
		${may ? html`${button(marked("retry", "Retry…"), act("retry"))}${button("Cancel…", act("cancel"))}${button(marked("trash", "Delete…"), act("delete"), "danger")}` : nothing}
		${iconButton("x", "Clear the choice", () => app.clearChoice())}</div>`;
}

// --- overview ---

function overviewView() {
	const { tab } = app.route;
	const tabs = app.about.tabs?.length ? segment([["", "Overview"], ...app.about.tabs.map((each) => [each, capital(each)])], tab, (to) => app.go({ tab: to }), "Part") : nothing;
	if (tab) return html`<main class="page" tabindex="-1"><div class="title parts"><h1>${capital(tab)}</h1><span class="end scroll-x">${tabs}</span></div>${app.notice()}<div class="grid">${(app.tables?.tables ?? []).map((each) => tableCard(each))}${app.tables?.send ? sendView(app.tables.send) : nothing}</div></main>`;
	const reply = app.overview;
	const by = [["", "By pipeline"], ...(reply?.names ?? []).map((each) => [each, `By ${oneLine(each)}`])];
	return html`<main class="page" tabindex="-1">
		<div class="title parts"><h1>Overview</h1><span class="end row"><span class="scroll-x">${tabs}</span>${by.length > 1 ? html`<span class="desk">${segment(by, app.route.by, (to) => app.go({ by: to }), "Group")}</span>` : nothing}${segment([["1", "24 h"], ["14", "14 d"], ["90", "90 d"]], app.route.days || "14", (days) => app.go({ days }), "Span")}<span class="desk">${startButton()}</span></span></div>
		${app.notice()}
		${reply ? html`<div class="grid g4">${reply.charts.map((each) => chartView(each, reply))}</div>
		<div class="grid g53 above"><div class="grid"><section class="card"><header><h2>Waiting for an answer</h2>${reply.waiting ? html`<span class="count asks">${count(reply.waiting)}</span>` : nothing}<a class="end link t12 m" href=${app.linkTo({ page: "inbox", run: "" })}>Open inbox</a></header><div>${reply.questions.length ? reply.questions.map((each) => questionLine(each)) : noQuestions()}</div></section>${reply.tables.slice(0, 1).map((each) => tableCard(each))}</div>
		<div class="grid">${reply.tables.slice(1).map((each) => tableCard(each))}</div></div>` : html`<div class="grid g4">${[1, 2, 3, 4].map(() => html`<div class="card fig"><div class="chart"></div></div>`)}</div>`}</main>`;
}

function sendView({ title, post: name, form }) {
	app.sending ??= { draft: new Draft(form) };
	const { sending } = app;
	const send = () => {
		const body = sending.draft.value();
		if (!sending.draft.wrong.size) app.send(sending, () => app.change(name, body).then(() => (sending.draft = new Draft(form))));
	};
	return html`<section class="card fig col">${draftView(sending.draft, "send", title)}${alarm(sending.problem)}<div class="above">${button("Send", send, "primary", { off: sending.busy })}</div></section>`;
}

const chartView = ({ title, big, more, keys, top, bars, lines, link }, { from, to }) => html`<a class="card fig" href=${app.linkTo({ page: "", run: "", ...link })}><div class="row"><h2 class="h3">${title}</h2><span class="row end desk">${keys.map(([kind, text]) => html`<span class="key ${kind}">${text}</span>`)}</span></div><div class="row base"><span class="big">${big}</span><span class="t12 dim cut">${more}</span></div>
	<svg class="chart" viewBox="0 0 264 92" preserveAspectRatio="none" role="img" aria-label="${title}, up to ${top}"><path class="g" d="M0 16H264"></path>${bars.map(([kind, x, y, w, h]) => svg`<rect class="f ${kind}" x=${x} y=${y} width=${w} height=${h} rx="1"></rect>`)}${lines.map(([kind, points]) => svg`<polyline class="l ${kind}" points=${points}></polyline>`)}<path class="axis" d="M0 76.5H264"></path><text x="264" y="12" text-anchor="end">${top}</text><text y="90">${from}</text><text x="264" y="90" text-anchor="end">${to}</text></svg></a>`;

function tableCard({ title, note, alerts, columns, rows, stack }) {
	const kind = (i) => `any ${columns[i][1] ?? ""} ${i ? "" : "m"}`;
	const cell = (each) => (each === null || typeof each !== "object" ? oneLine(each ?? "–") : each.state ? stateView(each.state, each.text ?? each.state) : each.link ? html`<a href=${app.linkTo({ page: "", run: "", ...each.link })}>${oneLine(each.text === each.link.run ? shortId(each.text) : each.text)}</a>` : each.times ? html`<ol class="t12">${each.times.map(([ms, text]) => html`<li>${oneLine(text)} <span class="faint">· ${moment(ms)} here</span></li>`)}</ol>` : each.acts ? html`<span class="row end">${each.acts.map(({ text, post: name, body }) => button(text, () => app.try(() => app.change(name, body))))}</span>` : html`${meter(each.share, "desk")} ${each.text}`);
	return html`<section class="card"><header><h2>${oneLine(title)}</h2><span class="end t12 dim">${note ?? ""}</span></header><div class="scroll-x">
		${(alerts ?? []).map((each) => html`<div class="alert blocked flat">${icon("blocked")}<span>${oneLine(each)} <a href=${app.linkTo({ page: "", run: "", status: "blocked" })}>Show</a></span></div>`)}
		${rows.length ? html`<table class="tbl dense ${stack ? "stack" : ""}"><thead><tr>${columns.map(([name], i) => html`<th scope="col" class=${kind(i)}>${oneLine(name)}</th>`)}</tr></thead><tbody>${rows.map((row) => html`<tr>${row.map((each, i) => html`<td class=${kind(i)}>${cell(each)}</td>`)}</tr>`)}</tbody></table>` : html`<p class="dim fig">None.</p>`}</div></section>`;
}

// --- run ---

const ENDED = new Set(["completed", "failed", "aborted"]);
const FILTERS = [["", "All"], ["failed", "Failed"], ["running", "Running"], ["waiting", "Waiting"]];

function runView() {
	const graph = app.route.view === "graph";
	const details = app.phone && app.phoneView() === "details";
	return html`<main class="whole-run">
		${headView()}
		${app.notice()}
		<div class="run ${details ? "details" : ""}">
			<div class="left">${toolsView(graph)}${details ? nothing : graph ? graphView() : treeView(app.lines())}${details ? nothing : sliderView()}</div>
			${app.phone && !details ? nothing : detailView()}
		</div></main>`;
}

function headView() {
	const info = app.run.info ?? { run_id: app.route.run, labels: {} };
	const outline = app.outline();
	const status = app.run.info ? app.status() : "";
	const facts = [
		["Worked", duration(app.workedMs()) || "–", ""], ["Waited", duration(app.waitedMs()) || "–", ""], ["Cost", dollars(outline.cost) || "–", ""], ["Used", `${count(outline.tokens)} tokens`, ""],
		["Begun", moment(outline.beganMs) || "–", "desk"], ["Worker", oneLine(info.worker ?? "–"), "desk"], ["Version", oneLine(info.version ?? "–"), "desk"],
	];
	return html`
		<div class="runhead status ${status}" data-live=${app.listens()}>
			<div class="row t12 faint desk"><a href=${app.linkTo({ run: "" })}>Runs</a>${icon("right", "s")}<a href=${app.linkTo({ run: "", pipeline: info.pipeline ?? "" })}>${oneLine(info.pipeline ?? "")}</a>${icon("right", "s")}<span class="mono">${safe(shortId(app.route.run))}</span>${copyButton(app.route.run, "Copy the full id")}</div>
			<div class="row wrap"><h1>${oneLine(titleOf(info))}</h1><span role="status">${status ? stateView(status, stateOf(status), "pill") : nothing}${app.connected ? nothing : html`<span class="hidden">reconnecting …</span>`}</span><span class="row desk">${chips(info.labels)}</span>${status ? actionsView(status) : nothing}</div>
			${whyView(status, info)}
			<dl class="strip one">${facts.map(([name, value, where]) => html`<div class=${where}><dt>${name}</dt><dd id=${name === "Worked" ? "clock" : nothing}>${value}</dd></div>`)}</dl>
		</div>`;
}

function whyView(status, info) {
	if (status === "abandoned") return html`<div class="alert abandoned flat">${icon("abandoned")}<span><b>No process owns this run.</b> A worker with its pipeline claims it, or <code>recover()</code> does.</span></div>`;
	const why = dotted(safe(info.reason ?? ""), wakesIn(info));
	if (["blocked", "sleeping"].includes(status) && why) return html`<div class="alert ${status} flat">${icon(status)}<span><b>${status}:</b> ${why}</span></div>`;
	return nothing;
}

function actionsView(status) {
	const may = !app.about.read_only;
	const retry = may && (status === "failed" || status === "aborted");
	const first = [
		retry ? button(marked("retry", "Retry…"), () => app.retry(), "", { id: "retry" }) : nothing,
		may && !ENDED.has(status) ? button("Cancel", () => app.actHere("cancel"), "danger", { id: "cancel" }) : nothing,
		may && status === "sleeping" && app.run.info?.can_wake !== false ? button(marked("clock", "Wake"), () => app.actHere("wake"), "", { id: "wake" }) : nothing,
		may && app.canResume(status) ? button("Resume", () => app.actHere("resume"), "", { id: "resume" }) : nothing,
		button(marked("compare", "Compare…"), () => app.pickOther(), "", { id: "compare" }),
	];
	return html`<span class="row end">${first}
		<a class="btn icon" aria-label="Export records" title="Export records" href=${address("export", { run: app.route.run })} download>${icon("fork")}</a></span>`;
}

function toolsView(graph) {
	const views = [...(app.phone ? [["details", "Details"]] : []), ["", html`${icon("list", "s")}Timeline`], ["graph", html`${icon("graph", "s")}Graph`]];
	return html`
		<div class="tools filters">
			${segment(views, app.phone ? app.phoneView() : app.route.view, (view) => app.go({ view: app.phone && !view ? "tree" : view }), "View", "view")}
			<span class="desk">${segment(FILTERS, app.route.filter, (filter) => app.go({ filter }), "Filter", "filter")}</span>
			<span class="small t12 dim" aria-live="polite">${app.foundSteps()}</span>
			<span class="row end t12 wide">${graph ? nothing : html`<span class="key">step</span><span class="key model">model</span><span class="key tool">tool</span><span class="key hatch">waits for a person</span>${app.outline().waits.some((each) => each.naps) ? html`<span class="key hatch naps">sleeps</span>` : nothing}`}</span>
			${graph || app.phone || !app.outline().gaps.length ? nothing : html`<button type="button" class="btn quiet" aria-pressed=${app.realTime} @click=${() => (app.realTime = !app.realTime)}>Real time</button>`}
			${app.zoom ? button("Zoom off", app.unzoom, "quiet") : nothing}
		</div>`;
}

function sliderView() {
	const { all } = app.run;
	const shown = app.route.seq ?? all;
	const live = app.route.seq === null;
	const dots = [...app.run.outline.waits.filter((each) => !each.naps).slice(0, 20).map((each) => ["waiting", each.seq]), ...app.run.fails.map((seq) => ["failed", seq])];
	return html`
		<div class="slider">
			<label for="seq">Record ${count(shown)} of ${count(all)}</label>
			<div>${dots.slice(0, 40).map(([kind, seq]) => html`<i class="dot ${kind}" .style=${`--x:${((seq / Math.max(1, all)) * 100).toFixed(1)}%`}></i>`)}
			<input id="seq" type="range" min="1" max=${Math.max(1, all)} .value=${String(shown)} @input=${app.onSlide} /></div>
			<button type="button" id="live" class=${live && !app.isOver() ? "on-live" : ""} aria-pressed=${live} @click=${() => app.go({ seq: null })}>${live && !app.isOver() ? "Live" : "Latest"}</button>
		</div>`;
}

// --- tree and timeline ---

const SPARE_LINES = 2;

const linePx = () => (app.phone ? 40 : 26);

function treeView(lines) {
	const { top, height } = app.scroll;
	const px = linePx();
	const first = Math.max(0, Math.floor(top / px) - SPARE_LINES);
	const end = Math.min(lines.length, Math.ceil((top + height - 28) / px) + SPARE_LINES);
	const drawn = lines.slice(first, end);
	const axis = axisOf(app.outline(), app.axisMs(), { real: app.realTime, zoom: app.zoom });
	return html`
		<div class="tree" role="tree" aria-label="Steps of the run" tabindex="0" id="tree"
				 aria-activedescendant=${activeId(drawn)} @scroll=${app.onScroll} @keydown=${onTreeKey}>
			<div class="axis" role="presentation"><b>Step</b><div @pointerdown=${app.onDrag} @dblclick=${app.unzoom} title="Drag to zoom, double click to reset">
				${axis.ticks.map(({ x, text }) => html`<span .style=${`--x:${share(x)}`}>${text}</span>`)}
				${axis.gaps.map(({ x, w, text }) => html`<span class="ask" .style=${`--x:${share(x + w / 2)}`}>${text}</span>`)}
				${app.dragged ? html`<i class="drag" .style=${`--x:${share(app.dragged[0])};--w:${share(app.dragged[1] - app.dragged[0])}`}></i>` : nothing}</div></div>
			<div class="all-lines" role="presentation" .style=${`height:${lines.length * px}px`}>
				${app.phone ? nothing : axis.ticks.map(({ x }) => html`<i class="gx" .style=${`--x:${x.toFixed(4)}`}></i>`)}
				${app.phone ? nothing : axis.gaps.map(({ x, w }) => html`<i class="gap" .style=${`--x:${x.toFixed(4)};--w:${w.toFixed(4)}`}></i>`)}
				${keyed("lines", "div", { role: "presentation" }, drawn.map((line, i) => [line, first + i]), ([line]) => line.key, ([line, at]) => lineView(line, at, lines.length, axis, px), { reuse: true })}
			</div>
			${lines.length ? nothing : html`<p class="empty">${app.emptyTree()}</p>`}
		</div>`;
}

const share = (x) => Math.max(-0.02, Math.min(1.02, x)).toFixed(4);

function activeId(drawn) {
	return drawn.some((line) => line.key === app.route.step) ? lineId(app.route.step) : nothing;
}

const lineId = (path) => `line-${encodeURIComponent(path)}`;

function lineView(line, index, all, axis, px) {
	const { node, unit } = line;
	const chosen = app.route.step === line.key;
	const status = unit ? unitStatus(unit) : nodeStatus(node);
	const name = unit ? unitName(unit) : oneLine(nameOf(node));
	const mark = unit && unit.done && status === "success" ? unitKind(unit) : stateOf(status);
	const kind = unit ? `unit ${status === "success" ? unitClass(unit) : ""}` : "step";
	return html`
		<div class="line ${status} ${chosen ? "chosen" : ""}" data-kind=${kind} role="treeitem" id=${lineId(line.key)}
				 aria-label="${name}, ${stateOf(status)}" aria-level=${line.level} aria-selected=${chosen} aria-posinset=${index + 1} aria-setsize=${all}
				 aria-expanded=${line.folds ? String(line.open) : nothing} data-path=${line.key} title=${unit ? oneLine(unit.note) : oneLine(node.note)}
				 .style=${`transform:translateY(${index * px}px)`} @click=${() => app.choose(line.key)}>
			<span class="label" .style=${`padding-left:${12 + (line.level - 1) * 18}px`}>
				<span class="fold" aria-hidden="true" @click=${(e) => app.toggle(e, node.path)}>${line.folds ? icon(line.open ? "down" : "right") : nothing}</span>
				${icon(mark, `mark ${unit ? unitClass(unit) : ""}`)}
				<span class="name">${name}</span>
				<span class="fact">${unit ? unitFact(unit) : fact(node)}</span>
			</span>
			<span class="track">${unit ? unitBars(unit, axis) : nodeBars(node, axis)}</span>
		</div>`;
}
const nodeStatus = (node) => (node.status === "waiting" && node.naps ? "sleeping" : node.status);

function nameOf(node) {
	const item = /\/~i(\d+)$/.exec(node.path);
	return item ? `[${item[1]}] ${node.name === `[${item[1]}]` ? "" : node.name}` : node.name;
}

function unitKind(unit) {
	if (unit.name.startsWith("context")) return "book";
	return unit.name.includes(":") || unit.note ? "tool" : "model";
}

const unitClass = (unit) => (unitKind(unit) === "model" ? "model" : "tool");
function unitName(unit) {
	const kind = unitKind(unit);
	if (kind === "book") return "retrieval";
	return oneLine(kind === "tool" ? unit.note.replace(/\(.*$/s, "") || "tool call" : `turn ${unit.name}`);
}

function unitStatus(unit) {
	if (waitsOf(unit).some((each) => each.to === null)) return "waiting";
	if (unit.done) return "success";
	const around = app.outline().nodes.get(stepOf(unit.path))?.status ?? "running";
	return around === "waiting" ? "running" : around;
}

const waitsOf = (unit) => app.outline().waits.filter((each) => each.unit === unit.path);

function unitFact(unit) {
	if (!unit.done && unitStatus(unit) === "running") return dotted("in flight", oneLine(/\((.*)\)/s.exec(unit.note)?.[1] ?? ""));
	return app.phone ? spent(unit.tokens, unit.cost) : "";
}

const spent = (used, cost) => dotted(tokens(used), dollars(cost));

function fact(node) {
	if (isCrowd(node)) return countsView(countsOf(node), { tokens: node.countedTokens, cost: node.countedCost });
	const took = node.latencyMs ? duration(node.latencyMs) : "";
	const text = node.status === "running" ? app.run.texts.get(node.path) : "";
	const open = node.status === "waiting" ? node.naps ? oneLine(node.note) : "asks" : text ? oneLine(text.slice(-80)) : "";
	const turns = app.outline().turns.get(node.path)?.filter((each) => unitKind(each) === "model").length;
	const why = node.status === "failure" || node.status === "aborted" ? node.status === "failure" ? oneLine(node.note) : "aborted" : "";
	return dotted(turns ? `agent · ${many(turns, "turn")}` : took, triedText(node), node.compacted && `${count(node.compacted)} compacted`, open, why);
}
const triedText = (node) => (node.attempts > 1 ? `${node.attempts} attempts` : "");

function countsView({ done, failed, waiting, running, toGo, all }, used) {
	const parts = [
		all ? `${count(all)} items` : "",
		html`<b class="success">✓ ${count(done)}</b>`,
		failed ? html`<b class="failure">✗ ${count(failed)}</b>` : "",
		waiting ? html`<b class="waiting">? ${count(waiting)}</b>` : "",
		running ? html`<b class="running">… ${count(running)} running</b>` : "",
		toGo ? `${count(toGo)} to go` : "",
		tokens(used.tokens), dollars(used.cost),
	];
	return html`<span class="counts">${parts.filter(Boolean).map((each) => html`${each} `)}</span>`;
}

function nodeBars(node, axis) {
	if (node.firstMs === null) return nothing;
	const open = node.status === "running" || node.status === "waiting";
	const to = open ? app.axisMs() : node.endMs ?? node.firstMs + node.latencyMs;
	const waits = app.outline().waits.filter((each) => each.path === node.path && !each.unit);
	const holds = node.children.length || app.outline().turns.has(node.path);
	if (holds) return bar(axis, node.firstMs, to, `span ${node.status === "failure" ? "failure" : ""}`);
	const tries = node.tries.map((row, i) => bar(axis, i ? node.tries[i - 1][1] ?? 0 : node.firstMs ?? 0, row[1] ?? 0, "try"));
	const from = waits.length ? Math.min(to, waits[waits.length - 1].to ?? to) : node.tries.length ? node.tries[node.tries.length - 1][1] ?? node.firstMs : node.firstMs;
	const kind = node.status === "running" ? "alive" : node.status === "failure" ? "failure" : node.status === "waiting" ? "none" : node.tokens ? "model" : "plain";
	const label = node.tokens ? spent(node.tokens, node.cost) : "";
	const own = kind === "none" || (waits.length && to - from < 20) ? nothing : bar(axis, from, to, kind, label);
	return html`${tries}${waits.map((each) => waitBar(axis, each))}${own}`;
}

function unitBars(unit, axis) {
	if (unit.fromMs === null) return nothing;
	const status = unitStatus(unit);
	const to = unit.done ? unit.atMs ?? unit.fromMs : status === "running" ? app.axisMs() : app.outline().nodes.get(stepOf(unit.path))?.endMs ?? app.axisMs();
	const waits = waitsOf(unit);
	const label = waits.length ? "" : unitKind(unit) === "model" ? spent(unit.tokens, unit.cost) : duration(to - unit.fromMs);
	const kind = unit.done ? unitClass(unit) : status === "running" ? "alive" : status;
	return html`${waits.map((each) => waitBar(axis, each))}${bar(axis, unit.fromMs, to, kind, label)}`;
}

const waitBar = (axis, each) => bar(axis, each.from, each.to ?? app.axisMs(), each.naps ? "hatch naps" : "hatch");

function bar(axis, from, to, kind, label = "") {
	const [x, end] = [axis.at(from), axis.at(to)];
	if (end < 0 || x > 1) return nothing;
	const where = `--x:${share(x)};--w:${share(Math.min(end, 1.02) - Math.max(x, -0.02))}`;
	const side = !label ? null : end < 0.72 ? "" : x > 0.28 ? "l" : null;
	return html`<i class="bar ${kind}" aria-hidden="true" .style=${where}></i>${side === null ? nothing : html`<em class=${side} .style=${where}>${label}</em>`}`;
}

// --- panel ---

function detailView() {
	const path = app.route.step;
	const node = app.outline().nodes.get(path);
	const unit = node ? null : app.unitAt(path);
	const questions = app.run.questions.filter((each) => !path || stepOf(each.path) === stepOf(path) || app.outline().questions.has(each.path));
	return html`
		<aside class="detail" aria-label="Details" tabindex="-1">
			${app.isLive() && questions.length ? keyed("asked", "div", {}, questions, (each) => each.token, questionView) : nothing}
			${node && path ? stepView(node) : unit ? unitView(unit) : path && app.graph.has(path) ? groupView() : runPanel()}
		</aside>`;
}
function runPanel() {
	const tabs = ["result", "input", "context", "cost", "raw"];
	const tab = tabs.includes(app.route.tab) ? app.route.tab : "result";
	const view = { result: resultView, input: inputView, context: contextPanel, cost: costView, raw: rawView }[tab]();
	return tabsView(tabs, tab, (each) => app.go({ tab: each }), view);
}

const isEvaluation = (run) => run?.pipeline?.startsWith("evaluation of ");
const isRehearsal = (run) => run?.pipeline?.startsWith("rehearsal of ");

function evaluationView() {
	const { filter, by, run } = app.route;
	const reply = app.fetched("evaluation", { run, only: filter, by, at: app.run.all });
	return notShown(reply) ?? html`<div class="sec col"><div class="row">${reply.changed ? segment([["", "All cases"], ["changed", "Changed"]], filter, (to) => app.go({ filter: to }), "Cases") : nothing}${reply.metrics.length ? select("Sort", by, [["", "In order"], ...reply.metrics.map((each) => [each, oneLine(each)])], (to) => app.go({ by: to })) : nothing}</div>${reply.tables.map(tableCard)}</div>`;
}

function resultView() {
	if (isEvaluation(app.run.info)) return html`${evaluationView()}${originView()}`;
	return html`${isRehearsal(app.run.info) ? evaluationView() : nothing}${outputView()}${peopleView()}${originView()}${section("Input", bodyPart(1, "input"))}${costView()}`;
}
function outputView() {
	const outline = app.outline();
	const status = app.status();
	if (status === "failed") {
		const failed = outline.nodes.get(outline.failedPath);
		return section("Error", html`<div class="alert failed">${icon("failed")}<div class="grow any">${safe(outline.feedback || "The run failed.")}</div></div>
			${failed ? html`<p><a href=${app.linkTo({ step: failed.path, tab: "" }, true)}>Open ${oneLine(failed.name)}</a></p>` : nothing}`);
	}
	if (status === "completed") {
		const last = outline.root.inside.at(-1);
		return section("Output", last?.seq ? bodyPart(last.seq, "output") : dim("no output"), last && copyButton(() => shown(app.body(last.seq)?.output), "Copy the output"));
	}
	const texts = [...app.run.texts].filter(([path]) => outline.nodes.get(path)?.status === "running");
	if (texts.length) return texts.slice(0, 3).map(([path, text]) => section(oneLine(outline.nodes.get(path)?.name ?? ""), liveText(text), WRITING));
	const feedback = status === "aborted" && outline.feedback ? safe(outline.feedback) : `The run is ${status}; its output comes when it has completed.`;
	return section("Output", dim(feedback));
}

const WRITING = html`<span class="link">being written</span>`;
const liveText = (text) => html`<div class="out text live">${safe(text)}<span class="cursor"></span></div><p class="t12 faint">Text may skip while it is written. The record of the step has all of it.</p>`;
function peopleView() {
	const waits = app.outline().waits.filter((each) => each.answerSeq);
	const given = waits.length ? app.fetched("answers", { run: app.route.run, at: waits.at(-1).answerSeq })?.answers : null;
	const past = (given ?? []).filter((each) => each.seq <= app.outline().seq);
	return past.length ? section("People", past.slice(-12).map(answerLine)) : nothing;
}

const answerLine = ({ by, decision, name, changes, comment, at_ms }) => html`<div class="row"><span class="face">${initials(by || "?")}</span><span class="grow any">${oneLine(by || "someone")} ${oneLine(decision)} <code>${oneLine(name)}</code>${changesView(changes)}${comment ? html`: “${oneLine(comment)}”` : nothing}</span><span class="t12 faint">${clock(at_ms)}</span></div>`;

const changesView = (changes) => (changes.length ? html` with ${changes.length > 1 ? many(changes.length, "change") : "a change"}: ${changes.map(([name, was, now]) => html`${oneLine(name)} ${was === null ? nothing : html`<del>${oneLine(shown(was))}</del> `}<ins>${oneLine(shown(now))}</ins> `)}` : nothing);

function originView() {
	const { origin } = app.outline();
	const { info } = app.run;
	const facts = [origin ? html`<dt>forked from</dt><dd><a class="link" href=${app.linkTo({ run: origin })}>${safe(shortId(origin))}</a></dd>` : nothing, info?.retries ? html`<dt>retries</dt><dd>${count(info.retries)}</dd>` : nothing, info?.queue ? html`<dt>queue</dt><dd>${oneLine(info.queue)}</dd>` : nothing];
	return facts.every((each) => each === nothing) ? nothing : html`<div class="sec"><dl class="facts">${facts}</dl></div>`;
}

const inputView = () => html`<div class="sec col">${bodyPart(1, "input")}</div>`;
function costView() {
	if (!app.outline().cost) return app.route.tab === "cost" ? html`<div class="sec">${dim("No step has cost anything.")}</div>` : nothing;
	const steps = [...app.outline().nodes.values()].filter((node) => node.path && node.countedCost && !node.children.length).sort((a, b) => b.countedCost - a.countedCost).slice(0, 12);
	const most = steps[0]?.countedCost;
	return section("Cost by step", steps.map((node) => html`<a class="row t12" href=${app.linkTo({ step: node.path }, true)}><span class="cut w-name">${oneLine(node.name)}</span>${meter(node.countedCost / most, "model grow")}<span class="num">${spent(node.countedTokens, node.countedCost)}</span></a>`));
}

function rawView() {
	const rows = app.run.rows.slice(-200);
	return html`<div class="sec col"><p class="t12 dim">The last ${count(rows.length)} of ${count(app.run.rows.length)} records. <a href=${address("export", { run: app.route.run })} download>Export all</a></p>
		${rows.map((row) => html`<details @toggle=${(e) => app.openRaw(row[0], e.target.open)}><summary class="mono">${row[0]} ${row[2]} ${oneLine(row[3])}</summary>${app.run.raw.has(row[0]) ? bodyPart(row[0], "raw") : nothing}</details>`)}</div>`;
}
function stepView(node) {
	const failed = node.status === "failure";
	const talks = node.tokens || app.outline().turns.has(node.path);
	const tabs = [...(failed ? ["error"] : []), "output", ...(talks ? ["conversation"] : []), "input", "context", ...(!failed && node.tries.length ? ["error"] : []), "raw"];
	const tab = tabs.includes(app.route.tab) ? app.route.tab : tabs[0];
	const turns = app.outline().turns.get(node.path)?.length;
	const kind = dotted(talks ? "agent" : "", turns ? many(turns, "call") : "", triedText(node));
	const facts = [["Worked", duration(node.status === "running" ? app.nowMs() - (node.beganMs ?? app.nowMs()) : node.latencyMs)], ["Tokens", node.countedTokens ? count(node.countedTokens) : ""], ["Cost", dollars(node.countedCost)]].filter(([, value]) => value);
	return html`
		<div class="panel-head col"><div class="row"><h2 class="any">${oneLine(node.name)}</h2>${stateView(nodeStatus(node), stateOf(nodeStatus(node)), "pill")}<span class="t12 dim cut">${kind}</span>
			${app.about.read_only || !node.seq || failed ? nothing : html`<span class="end">${button(marked("fork", "Fork after this step"), () => app.fork(node.seq), "quiet")}</span>`}</div>
			${facts.length ? html`<dl class="strip one">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>` : nothing}</div>
		${tabsView(tabs, tab, (each) => app.go({ tab: each }), html`<div class="sec col">${tabView(node, tab)}</div>`)}`;
}

function tabView(node, tab) {
	const text = app.run.texts.get(node.path);
	if (tab === "output" && node.status === "running" && text) return html`${h3("Output", WRITING)}${liveText(text)}`;
	if (tab === "conversation") return conversationView(node);
	if (tab === "error") return html`${node.status === "failure" && node.seq ? bodyPart(node.seq, "error") : lastTry(node)}${failedFoot(node)}`;
	if (tab === "input" && !node.seq) return nothing;
	if (!node.seq) return notYet(node);
	return bodyPart(node.seq, tab);
}

function notYet(node) {
	if (nodeStatus(node) === "sleeping") return emptyView("sleeping", `It ${oneLine(node.note)}.`, "The output comes when it wakes.");
	if (node.status === "waiting") return emptyView("waiting", "It waits for an answer.", "The output comes after the answer.");
	return node.status === "running" ? emptyView("running", "Running.", "The output comes when the step ends.") : emptyView("aborted", "No output.", "The step was aborted before it had an outcome.");
}

const lastTry = (node) => (node.tries.length ? bodyPart(node.tries.at(-1)[0], "error") : dim("no error"));
function failedFoot(node) {
	const may = !app.about.read_only && app.isOver() && node.status === "failure";
	return html`
		${node.seq ? html`${h3("Input that failed", copyButton(() => shown(app.body(node.seq)?.input?.value), "Copy the input"))}<div class="out">${bodyPart(node.seq, "input")}</div>` : nothing}
		${node.tries.length ? html`${h3("Attempts")}${attemptsView(node)}` : nothing}
		${may ? html`<div class="row wrap">${button(marked("retry", "Retry from this step…"), () => app.retry(), "primary")}<span class="t12 faint">${count(app.outline().root.done)} finished steps are kept.</span></div>` : nothing}`;
}

function attemptsView(node) {
	const tries = [...node.tries.map((row) => [row[8], row[9]]), ...(node.tries.length < node.attempts ? [[node.attempts, node.note]] : [])];
	return html`<ol class="col attempts">${tries.map(([number, why]) => html`<li class="row"><span>${number}</span><span class="cut dim">${oneLine(why.replace(/^Agent execution failed with /, "")) || stateOf(node.status)}</span></li>`)}</ol>`;
}
function unitView(unit) {
	const step = app.outline().nodes.get(stepOf(unit.path));
	const tabs = ["conversation", "raw"];
	const tab = tabs.includes(app.route.tab) ? app.route.tab : "conversation";
	const raw = html`${unit.askedSeq && unit.askedSeq !== unit.seq ? html`${h3("asked")}${bodyPart(unit.askedSeq, "raw")}` : nothing}${h3(unit.done ? "result" : "asked")}${bodyPart(unit.seq, "raw")}`;
	const about = dotted(unitKind(unit) === "book" ? "retrieval" : unitKind(unit), step ? `of ${oneLine(step.name)}` : "", spent(unit.tokens, unit.cost));
	return html`
		<div class="panel-head row"><h2 class="any">${unitName(unit)}</h2>${stateView(unit.done ? "completed" : "running", unit.done ? "completed" : "running", "pill")}<span class="t12 dim cut">${about}</span></div>
		${tabsView(tabs, tab, (each) => app.go({ tab: each }), html`<div class="sec col">${tab === "raw" || !step ? raw : conversationView(step, unit)}</div>`)}`;
}
const notShown = (body) => (!body ? waitView() : body.problem ? alarm(body.problem) : body.hidden ? hiddenView() : null);

function bodyPart(seq, part) {
	const body = app.body(seq);
	const not = notShown(body);
	if (not) return not;
	const whole = body.cut ? html`<p class="t12"><a href=${address("record", { run: app.route.run, seq, full: 1 })} download>${count(body.chars)} characters: download</a></p>` : nothing;
	switch (part) {
		case "output": return body.output === undefined || body.output === null ? dim("no output") : html`<div class="out">${factsView(body.output)}</div>${whole}`;
		case "input": return body.input?.known ? factsView(body.input.value) : dim(safe(body.input?.why ?? "The input is not stored, and cannot be derived here."));
		case "context": return contextView(body.context);
		case "error": return errorView(body.error, body.feedback);
		default: return html`<pre class="out raw">${shown(body.body)}</pre>${whole}`;
	}
}

function contextPanel() {
	const reply = app.fetched("context", { run: app.route.run, at: app.outline().seq });
	return html`<div class="sec col">${notShown(reply) ?? html`${h3("Context")}${reply.values ? factsView(reply.values) : dim("The run has no context.")}${reply.changes.length ? html`${h3("Changed by the run")}${contextView(reply)}` : nothing}`}</div>`;
}

function contextView(context) {
	if (!context || !context.changes.length) return dim("The step did not change the context.");
	return html`<table class="diff"><thead><tr><th scope="col">key</th><th scope="col">before</th><th scope="col">after</th></tr></thead><tbody>
		${context.changes.map((each) => html`<tr class=${each.kind}><th scope="row"><span class="mono">${safe(each.key)}</span> <span class="t12 dim">${each.kind}</span></th>
			<td>${each.before === undefined ? nothing : html`<pre><del>${shown(each.before)}</del></pre>`}</td><td>${each.after === undefined ? nothing : html`<pre><ins>${shown(each.after)}</ins></pre>`}</td></tr>`)}
	</tbody></table>`;
}

function errorView(error, feedback) {
	if (!error && !feedback) return dim("no error");
	const text = error ? `${error.type_name}: ${error.message}\n${(error.frames ?? []).map((f) => `  ${f.file}:${f.line} in ${f.function}`).join("\n")}` : feedback ?? "";
	return html`
		<div class="alert failed">${icon("failed")}<div class="grow any error"><b>${safe(error?.type_name ?? "Failed")}</b><div class="text">${safe(error?.message ?? feedback)}</div></div>${copyButton(text, "Copy the error")}</div>
		${error ? framesView(error.frames ?? []) : nothing}
		${(error?.causes ?? []).map((cause) => html`${h3("Caused by")}${errorView(cause, null)}`)}`;
}
function framesView(frames) {
	if (!frames.length) return nothing;
	const own = frames.filter((each) => each.own).reverse();
	const others = frames.filter((each) => !each.own);
	return html`${own.length ? h3("Your code", many(own.length, "frame")) : nothing}
		<div class="card frames">${own.map((each) => html`<div class="frame row"><code class="cut" title=${safe(each.file)}><b>${safe(each.short ?? each.file)}</b>:${each.line}</code><span class="t12 faint">in ${safe(each.function)}</span></div>
			${(each.source ?? []).map(([number, code]) => html`<div class="code ${number === each.line ? "hit" : ""}"><i>${number}</i><span>${safe(code)}</span></div>`)}`)}
		${others.length ? html`<details class="frame" ?open=${!own.length}><summary>${many(others.length, "frame")} of libraries</summary>${others.map((each) => html`<code class="any">${safe(each.short ?? each.file)}:${each.line} in ${safe(each.function)}</code><br />`)}</details>` : nothing}</div>`;
}


// --- conversation ---

function conversationView(node, unit = null) {
	const { talks } = app.run;
	const talk = app.fetched("conversation", { run: app.route.run, step: node.path, at: node.seq || app.run.all }) ?? talks.get(node.path);
	talks.set(node.path, talk);
	const not = notShown(talk);
	if (not) return not;
	const all = talk.messages;
	const shownOnes = unit ? all.filter((each) => each.unit === unit.path) : all;
	if (!shownOnes.length) return dim("No message is recorded yet.");
	const turns = all.filter((each) => each.role === "assistant");
	return html`${keyed("messages", "div", { className: "col" }, shownOnes.map((each, i) => [each, `${node.path} ${each.unit ?? i} ${each.role}`]), ([, key]) => key, ([each]) => messageView(each))}${unit || turns.length < 2 ? nothing : compareTurns(node, turns)}${node.status === "running" && turns.length && !app.about.read_only ? html`<form class="row" @submit=${(e) => app.steer(e, node.path)}><input class="in" name="message" placeholder="Message to the agent" aria-label="Message to the agent" />${submit("Send")}</form>` : nothing}`;
}

const messageView = ({ head: [kind, mark, name, about, facts], ...message }) => html`<details class="msg ${kind}" ?open=${message.role !== "system"} data-role=${message.role}>
	<summary>${icon(mark, "s")}<b>${oneLine(name)}</b><span class="cut grow">${oneLine(about)}</span><span>${facts}</span></summary>
	<div>${bodyOf(message)}</div></details>`;

function bodyOf(message) {
	if (message.role === "retrieved") return message.sources.map((each) => html`<div class="src"><span class="mono">${each.score.toFixed(2)}${meter(each.score, "tool")}</span><div><div class="m">${oneLine(each.source ?? each.collection)}</div><div class="t12 dim text">${safe(each.text)}</div></div></div>`);
	if (message.role !== "tool") return longText(safe(message.text ?? ""));
	const changed = changesView(Object.entries(message.approved ?? {}).map(([name, now]) => [name, message.asked?.[name] ?? null, now]).filter(([, was, now]) => !same(was, now)));
	return html`${factsView(message.arguments ?? {}, "args")}${changed === nothing ? nothing : html`<p class="t12 dim">approved${changed}</p>`}
		${message.result === undefined ? html`<p class="t12 dim">${message.denied ? html`denied: ${safe(message.denied)}` : "in flight"}</p>` : html`<div class="mono row base">→ <div class="grow">${longText(shown(message.result))}</div></div>`}`;
}
const LONG = 12;

function longText(text) {
	if (text.split("\n").length <= LONG && text.length < LONG * 80) return html`<div class="text">${text}</div>`;
	const turn = ({ target }) => (target.textContent = target.previousElementSibling.classList.toggle("long") ? "Show all" : "Show less");
	return html`<div class="text long">${text}</div><button type="button" class="all" @click=${turn}>Show all</button>`;
}

function compareTurns(node, turns) {
	const [a, b] = app.run.turns ?? [];
	if (a === undefined) return html`<div>${button(marked("compare", `Compare turns ${turns.at(-2).turn} and ${turns.at(-1).turn}`), () => (app.run.turns = [turns.length - 2, turns.length - 1]), "quiet")}</div>`;
	const pick = (label, chosen, choose) => select(label, String(chosen), turns.map((each, i) => [String(i), `turn ${each.turn}`]), (at) => (app.run.turns = choose(Number(at))));
	return html`<section class="col" aria-label="Two turns">${h3("Compare", html`${pick("First turn", a, (at) => [at, b])}${pick("Second turn", b, (at) => [a, at])}`)}${diffView({ a: app.route.run, step: node.path, one: a, other: b })}</section>`;
}

// --- differences ---

function diffView(query) {
	const reply = app.fetched("diff", query);
	const not = notShown(reply);
	if (not) return not;
	const side = (at, kind) => reply.rows.map((row) => html`<div class="dl ${row[at] ? (row[2] ? "" : kind) : "n"}" data-s=${row[at] && !row[2] ? (at ? "+" : "−") : " "}><span>${(row[at] ?? []).map(([text, both]) => (both ? safe(text) : at ? html`<ins>${safe(text)}</ins>` : html`<del>${safe(text)}</del>`))}</span></div>`);
	return html`<div class="grid g2 two">${["A", "B"].map((name, at) => html`<div><div class="lab sidename">${name}</div>${side(at, at ? "a" : "d")}</div>`)}</div>`;
}

// --- compare ---

function compareView() {
	const { compared } = app;
	return html`<main class="page" tabindex="-1">${app.notice()}${compared ? wholeView(compared) : nothing}</main>`;
}

function wholeView(reply) {
	const chosen = reply.steps.find((each) => each.path === app.route.step) ?? reply.steps.find((each) => each.same === false) ?? reply.steps[0];
	return html`
		<div class="title"><h1>Compare</h1><span class="dim desk">${reply.sentence}</span><span class="row end desk"><a class="btn quiet" href=${app.linkTo({ run: app.route.other, other: app.route.run })}>Swap</a>${button(marked("copy", "Copy link"), () => app.copy(location.href))}</span></div>
		<div class="grid g2">${sideView("A", reply.runs?.[0] ?? { run_id: reply.a })}${sideView("B", reply.runs?.[1] ?? { run_id: reply.b })}</div>
		<div class="grid g4 above">${reply.cards.map((each) => html`<div class="card fig"><h2 class="h3">${each.title}</h2><div class="big ${each.kind}">${each.big}</div><div class="t12 dim">${oneLine(each.more)}</div></div>`)}</div>
		<div class="grid g53 above">${stepsView(reply, chosen)}${chosen ? stepDiff(chosen) : nothing}</div>`;
}

function sideView(letter, run) {
	return html`<div class="card fig"><div class="row"><span class="count ab">${letter}</span><a class="m cut" href=${app.linkTo({ run: run.run_id })}>${oneLine(titleOf(run))}</a><span class="mono faint">${safe(shortId(run.run_id))}</span>${run.state ? stateView(run.state, run.state, "pill") : nothing}</div><div class="t12 dim">${dotted(run.created_ms && moment(run.created_ms), run.version && oneLine(`version ${run.version}`))}</div></div>`;
}

function stepsView(reply, chosen) {
	const only = app.route.filter === "different";
	const steps = only ? reply.steps.filter((each) => each.same !== true) : reply.steps;
	const others = reply.steps.filter((each) => each.same !== true).length;
	return html`<section class="card"><header><h2>Steps</h2><span class="end">${segment([["", `All ${reply.steps.length}`], ["different", `Different ${others}`]], app.route.filter, (filter) => app.go({ filter }), "Steps")}</span></header>
		<table class="tbl dense compared"><thead><tr><th scope="col">Step</th><th scope="col">Result</th><th scope="col" class="num desk">A</th><th scope="col" class="num desk">B</th><th scope="col" class="num desk">Time</th><th scope="col" class="num">Cost</th></tr></thead>
		<tbody>${steps.slice(0, 500).map((each) => stepLine(each, each === chosen))}</tbody></table></section>`;
}

const stepLine = ({ path, same, view: [kind, mark, word, depth, a, b], by }, on) => html`<tr class="${on ? "on" : ""} ${same === false ? "changed" : ""}" data-path=${path}><td class="m">${depth}<button type="button" class="link plain" @click=${() => app.go({ step: path }, { replace: true })}>${oneLine(lastName(path))}</button></td><td><span class="st ${kind}">${icon(mark)}${word}</span></td>
	<td class="num dim desk">${a}</td><td class="num dim desk">${b}</td>${by.map(([kind, text], i) => html`<td class="num ${kind} ${i ? "" : "desk"}">${text}</td>`)}</tr>`;

function stepDiff(step) {
	const { run, other } = app.route;
	const part = app.route.tab === "input" ? "input" : "output";
	return html`<section class="card"><header><h2>${oneLine(lastName(step.path))}</h2><span class="end">${segment([["output", "Output"], ["input", "Input"]], part, (to) => app.go({ tab: to }, { replace: true }), "Part")}</span></header>
		<div>${diffView({ a: run, b: other, part, one: step.a?.seq, other: step.b?.seq })}</div></section>`;
}

// --- graph ---

const LISTED = 12;
const OVER = new Set(["success", "failure", "aborted"]);

function graphView() {
	const reader = app.graph;
	const whole = reader.sight();
	const chosen = chosenPath();
	const { x, y, k } = reader.pan ?? { x: 0, y: 0, k: 1 };
	return html`
		<div class="canvas" id="canvas" @wheel=${(e) => reader.onWheel(e)} @pointerdown=${(e) => reader.onDown(e)} @dblclick=${() => reader.fit()}>
			<div class="graph" role="tree" aria-label="Graph of the pipeline" tabindex="0" id="graph" .style=${`transform:translate(${x.toFixed(1)}px, ${y.toFixed(1)}px) scale(${k.toFixed(3)})`}
					 aria-activedescendant=${reader.stops().includes(chosen) ? boxId(chosen) : nothing} @keydown=${onTreeKey}>
				<svg class="edges" aria-hidden="true">${edgesView(reader.edges)}</svg>
				${insideView(whole)}
				${reader.edges.map((each) => (each.when ? html`<span class="cond" aria-hidden="true" .style=${`left:${each.lx}px;top:${each.ly}px`}>${each.when}</span>` : nothing))}
				${whole.inside.length ? nothing : html`<p class="empty">${app.emptyTree()}</p>`}
			</div>
			<span class="zoomer">${iconButton("plus", "Zoom in", () => reader.zoom(1.2), "")}${iconButton("minus", "Zoom out", () => reader.zoom(1 / 1.2), "")}${iconButton("fit", "Fit", () => reader.fit(), "")}</span>
		</div>`;
}
function edgesView(edges) {
	const kinds = [...new Set(edges.map((each) => each.kind))];
	return kinds.map((kind) => svg`<path class=${kind} d=${edges.filter((each) => each.kind === kind).map((each) => each.d).join("")}></path>`);
}
function measured(whole) {
	const graph = document.getElementById("graph");
	const k = app.graph.pan?.k ?? 1;
	const origin = graph.getBoundingClientRect();
	const edges = [];
	const rect = (path) => {
		const r = document.getElementById(boxId(path))?.getBoundingClientRect();
		return r && { x: (r.left - origin.left) / k, y: (r.top - origin.top) / k, w: r.width / k, h: r.height / k };
	};
	const join = (x1, y1, x2, y2, kind, when) => {
		const mid = (y1 + y2) / 2;
		edges.push({ kind, d: `M${x1} ${y1}C${x1} ${mid} ${x2} ${mid} ${x2} ${y2}m-4-5l4 5 4-5`, when, lx: (x1 + x2) / 2, ly: mid });
	};
	for (const pending = [whole]; pending.length; ) {
		const { box: around, inside } = pending.pop();
		const own = rect(around.path) ?? { x: 0, y: 0, w: 0, h: 0 };
		let before = null;
		for (const { box } of inside) {
			const [to, group] = [rect(box.path), app.outline().groups.get(box.path)];
			if (!to) continue;
			const aside = isAside(box);
			const across = isAcross(around) || (aside && !before);
			const when = aside ? WHEN[box.path.slice(box.path.lastIndexOf("/") + 1).slice(0, 2)] : ["branch", "selection"].includes(around.kind) ? `if ${boxName(box, group)}` : "";
			const kind = aside ? "alt" : group && statusOf(group) === "success" ? "past" : group ? "" : "todo";
			const [x, y] = [to.x + to.w / 2, to.y - 2];
			if (across) join(aside ? x : own.x + own.w / 2, own.y + 44, x, y, kind, when);
			else if (before) join(before.x + before.w / 2, before.y + before.h, x, y, kind, when);
			if (across && !aside) edges.push({ kind, d: `M${x} ${to.y + to.h}V${own.y + own.h - 10}H${own.x + own.w / 2}v10` });
			if (!aside) before = to;
		}
		if (around.kind === "loop" && before) edges.push({ kind: "alt", d: `M${before.x + before.w} ${before.y + before.h / 2}h14V${own.y + 60}h-12m5-4l-5 4 5 4`, when: around.when ? `until ${oneLine(around.when)}` : "again", lx: before.x + before.w + 14, ly: own.y + 80 });
		pending.push(...inside);
	}
	return edges;
}

const WHEN = { "~f": "on error", "~r": "if rejected", "~e": "if overdue", "~c": "to undo", "~h": "if it fails" };
const chosenPath = () => declaredPath(app.route.step);

const boxId = (path) => `box-${encodeURIComponent(path)}`;

function insideView(shown) {
	const aside = shown.inside.filter(({ box }) => isAside(box));
	const main = shown.inside.filter(({ box }) => !isAside(box));
	return html`
		${shown.earlier ? moreView(earlierKey(shown), shown.level, `${count(shown.earlier)} earlier`) : nothing}
		${main.length ? html`<div class=${isAcross(shown.box) ? "across" : "down"} role="presentation">${boxesView(main)}</div>` : nothing}
		${aside.length ? html`<div class="across aside" role="presentation">${boxesView(aside)}</div>` : nothing}
		${shown.later ? moreView(laterKey(shown), shown.level, `${count(shown.later)} more`) : nothing}`;
}

const boxesView = (boxes) => boxes.map((each) => boxView(each));

function boxView(shown) {
	const { box, level, open } = shown;
	const group = app.outline().groups.get(box.path);
	const status = statusHere(box, group);
	const name = boxName(box, group);
	const chosen = chosenPath() === box.path;
	const dim = (app.route.filter || app.route.q) && !isWanted(box, app.outline(), app.route);
	return html`
		<div class="box ${status} ${chosen ? "chosen" : ""} ${dim ? "dim" : ""}" data-kind=${box.kind} data-open=${open} role="treeitem" id=${boxId(box.path)} data-path=${box.path}
				 aria-label="${name}, ${box.kind}, ${stateOf(status)}" aria-level=${level} aria-selected=${chosen}
				 aria-expanded=${box.inside.length ? String(open) : nothing}>
			<div class="head" @click=${() => app.graph.choose(box.path)}>
				<span class="fold" aria-hidden="true" @click=${(e) => app.graph.toggle(e, box.path)}>${box.inside.length ? icon(open ? "down" : "right") : nothing}</span>
				${icon(stateOf(status), "mark")}
				<span class="name">${name}</span>
				${box.kind === "step" ? nothing : html`<span class="kind">${kindText(box)}</span>`}
				<span class="sub">${facts(box, group)}</span>
			</div>
			${open ? html`<div class="inside" role="group">${insideView(shown)}</div>` : nothing}
		</div>`;
}
function moreView(key, level, text) {
	const chosen = app.graph.at === key;
	return html`
		<div class="more ${chosen ? "chosen" : ""}" role="treeitem" id=${boxId(key)} aria-label=${text} aria-level=${level + 1}
				 aria-selected=${chosen} @click=${() => app.graph.turn(key)}>… ${text}</div>`;
}

function boxName(box, group) {
	if (box.path.endsWith("/~i")) return oneLine((group?.name ?? "").replace(/\[\d+\]$/, "")) || "each";
	const name = group?.name || box.name || lastName(box.path);
	return oneLine(isAside(box) && name !== lastName(box.path) ? `${lastName(box.path)}: ${name}` : name);
}

const kindText = (box) => ({ pipeline: "", question: "asks", approval: "asks" })[box.kind] ?? box.kind;
function statusHere(box, group) {
	if (group) return statusOf(group);
	const around = statusOf(app.outline().groups.get(parentOf(box.path)));
	return app.isOver() || OVER.has(around) ? "skipped" : "pending";
}

function facts(box, group) {
	const outline = app.outline();
	const items = outline.groups.get(`${box.path}/~i`);
	if (items && box.kind === "map") return countsView(itemCounts(outline, box, items), items);
	if (!group) return nothing;
	if (group.seen > 1) return countsView({ ...group, done: group.success, failed: group.failure, all: 0, toGo: 0 }, group);
	const node = outline.nodes.get(group.last);
	if (node && isCrowd(node)) return countsView(countsOf(node), group);
	return onlyFacts(node, group);
}

function itemCounts(outline, box, items) {
	const around = outline.nodes.get(outline.groups.get(box.path)?.last ?? "");
	const all = Math.max(items.seen, around?.of ?? 0);
	const { success: done, failure: failed, waiting, running } = items;
	return { all, done, failed, waiting, running, toGo: Math.max(0, all - items.seen) };
}
function onlyFacts(node, group) {
	const text = node.status === "running" ? app.run.texts.get(node.path) : "";
	const units = (app.outline().turns.get(node.path) ?? []).map(unitKind);
	const turns = [["turn", "model"], ["tool", "tool"]].map(([noun, kind]) => [noun, units.filter((each) => each === kind).length]).map(([noun, n]) => n && many(n, noun));
	const note = oneLine(text ? text.slice(-80) : node.status === "success" && node.children.length ? node.note.replace(/^fell back: .*/s, "fell back") : node.note);
	return dotted(node.latencyMs ? duration(node.latencyMs) : "", triedText(node), ...turns, spent(group.tokens, group.cost), note);
}
function groupView() {
	const path = app.route.step;
	const group = app.outline().groups.get(path);
	if (!group) return html`<div class="panel-head"><h2>${oneLine(lastName(path))}</h2></div><div class="sec"><p class="dim">${app.isOver() ? "It was not needed." : "It has not begun."}</p></div>`;
	const settled = group.success + group.failure;
	const counts = { ...group, done: group.success, failed: group.failure, all: 0, toGo: 0 };
	return html`
		<div class="panel-head"><h2>${oneLine(group.name)} <span class="t12 dim">${count(group.seen)} times</span></h2>
		<p class="t12 dim">${countsView(counts, group)} ${settled ? `· ${duration(group.latencyMs / settled)} each` : nothing}</p></div>
		<ul class="steps sec col">${stepsOf(app.outline(), path, LISTED).map((node) => html`
			<li class="row ${nodeStatus(node)}">${stateView(nodeStatus(node), stateOf(nodeStatus(node)))}
				<a href=${app.linkTo({ step: node.path }, true)}>${oneLine(node.path.replace(/\/~i(\d+)/g, "[$1]"))}</a> <span class="t12 dim cut">${oneLine(node.note)}</span></li>`)}</ul>
		<p class="sec"><a href=${app.linkTo({ view: "", q: group.name, step: "" }, true)}>all of them in the tree</a></p>`;
}

// --- route ---

const NAMES = ["page", "run", "step", "tab", "filter", "q", "status", "pipeline", "days", "by", "other", "view", "token"];

function routeOf(hash) {
	const given = new URLSearchParams(hash.replace(/^#/, ""));
	const seq = given.get("seq");
	const texts = Object.fromEntries(NAMES.map((name) => [name, given.get(name) ?? ""]));
	return { ...texts, labels: given.getAll("label"), seq: seq === null || !/^\d+$/.test(seq) ? null : Number(seq) };
}

function hashOf(route) {
	const given = new URLSearchParams();
	for (const name of NAMES) if (route[name]) given.set(name, route[name]);
	for (const label of route.labels ?? []) given.append("label", label);
	if (route.seq !== null && route.seq !== undefined) given.set("seq", String(route.seq));
	return `#${given}`;
}

const NOWHERE = routeOf("");

// --- event stream ---

class Live {
	constructor({ run, after, heard, connected }) {
		this.run = run;
		this.after = after ?? (() => 0);
		this.heard = heard;
		this.connected = connected;
		this.source = null;
		this.wait = 0;
		this.ended = false;
		this.onHide = () => (document.hidden ? this.close() : this.open());
		document.addEventListener("visibilitychange", this.onHide);
		this.open();
	}

	open() {
		if (this.source || this.ended) return;
		const source = new EventSource(address("events", { run: this.run, after: this.run === undefined ? undefined : this.after() }));
		this.source = source;
		source.onopen = () => {
			this.wait = 0;
			this.connected(true);
		};
		source.onerror = () => this.#again();
		for (const [name, take] of Object.entries(this.heard)) {
			source.addEventListener(name, (event) => take(JSON.parse(event.data)));
		}
	}
	#again() {
		this.connected(false);
		this.close();
		this.wait = Math.min(5000, this.wait ? this.wait * 2 : 250);
		if (!this.ended) this.timer = setTimeout(() => this.open(), this.wait);
	}
	retry() {
		this.close();
		this.open();
	}

	close() {
		clearTimeout(this.timer);
		this.source?.close();
		this.source = null;
	}

	end() {
		this.ended = true;
		this.close();
		document.removeEventListener("visibilitychange", this.onHide);
	}
}

class GraphReader {
	constructor() {
		this.declared = null;
		this.toggled = new Map();
		this.from = new Map();
		this.at = "";
		this.changes = 0;
		this.pan = null;
		this.moved = false;
		this.size = "";
		this.edges = [];
		this.boxes = { of: null, groups: -1, declared: null, root: null };
		this.seen = { key: "", outline: null, whole: null };
	}

	async load() {
		this.declared = [];
		const reply = await app.try(() => get("graph", { run: app.route.run }));
		this.declared = (reply?.steps ?? []).map(([path, kind]) => [path, kind, ...(reply.names?.[path] ?? [])]);
		this.changed();
	}

	root() {
		if (this.declared === null && app.run.info) this.load();
		const outline = app.outline();
		const { of, groups, declared, root } = this.boxes;
		if (root && of === outline && groups === outline.groups.size && declared === this.declared) return root;
		const made = boxesOf(this.declared ?? [], outline);
		this.boxes = { of: outline, groups: outline.groups.size, declared: this.declared, root: made };
		return made;
	}
	sight() {
		const outline = app.outline();
		const key = `${app.version}\n${this.changes}`;
		if (!this.seen.whole || this.seen.key !== key || this.seen.outline !== outline) {
			this.seen = { key, outline, whole: inSight(this.root(), outline, this.toggled, this.from) };
		}
		return this.seen.whole;
	}
	drawn() {
		if (!document.getElementById("graph")) return;
		const size = `${document.getElementById("graph")?.offsetWidth} ${document.getElementById("graph")?.offsetHeight}`;
		if (!this.pan || (!this.moved && size !== this.size)) {
			this.size = size;
			return this.fit();
		}
		const edges = measured(this.sight());
		if (JSON.stringify(edges) === JSON.stringify(this.edges)) return undefined;
		this.edges = edges;
		return app.redraw();
	}

	stops() {
		return stopsOf(this.sight());
	}
	has(path) {
		return app.outline().groups.has(path) || Boolean(this.declared?.some(([each]) => each === path));
	}

	where() {
		return this.at || declaredPath(app.route.step);
	}

	changed() {
		this.changes += 1;
		app.redraw();
	}
	stepAt(path) {
		const group = app.outline().groups.get(path);
		return group?.seen === 1 ? group.last : path;
	}

	choose(path) {
		this.at = "";
		app.choose(this.stepAt(path));
	}

	moveTo(key) {
		this.at = key.includes("\0") ? key : "";
		if (!this.at) app.go({ step: this.stepAt(key) }, { replace: true });
		app.redraw();
		requestAnimationFrame(() => this.reveal(key));
	}
	reveal(key) {
		const [box, canvas] = [document.getElementById(boxId(key)), document.getElementById("canvas")];
		if (!box || !canvas || !this.pan) return;
		const [a, b] = [box.getBoundingClientRect(), canvas.getBoundingClientRect()];
		const by = (low, high, from, to) => (low < from ? from - low + 16 : high > to ? Math.max(from - low, to - high - 16) : 0);
		this.moved = true;
		this.pan.x += by(a.left, a.right, b.left, b.right);
		this.pan.y += by(a.top, Math.min(a.bottom, a.top + 60), b.top, b.bottom);
		app.redraw();
	}

	zoom(factor, x = 200, y = 200) {
		const pan = this.pan ?? { x: 0, y: 0, k: 1 };
		const k = Math.max(0.2, Math.min(2.5, pan.k * factor));
		this.moved = true;
		this.pan = { x: x - ((x - pan.x) * k) / pan.k, y: y - ((y - pan.y) * k) / pan.k, k };
		app.redraw();
	}
	fit() {
		const [canvas, graph] = [document.getElementById("canvas"), document.getElementById("graph")];
		if (!canvas || !graph) return;
		const [w, h] = [graph.offsetWidth, graph.offsetHeight];
		const k = Math.max(0.55, Math.min(1, canvas.clientWidth / w, app.phone ? 1 : canvas.clientHeight / h));
		this.pan = { x: Math.max(0, (canvas.clientWidth - w * k) / 2), y: 0, k };
		app.redraw();
	}

	onWheel(event) {
		event.preventDefault();
		const at = event.currentTarget.getBoundingClientRect();
		if (event.ctrlKey || event.metaKey) return this.zoom(event.deltaY < 0 ? 1.1 : 1 / 1.1, event.clientX - at.left, event.clientY - at.top);
		const pan = this.pan ?? { x: 0, y: 0, k: 1 };
		this.moved = true;
		this.pan = { ...pan, x: pan.x - event.deltaX, y: pan.y - event.deltaY };
		return app.redraw();
	}

	onDown(event) {
		if (event.button || event.target.closest("button, .head, .more")) return;
		const canvas = event.currentTarget;
		const from = this.pan ?? { x: 0, y: 0, k: 1 };
		canvas.setPointerCapture(event.pointerId);
		this.moved = true;
		const move = (e) => {
			this.pan = { ...from, x: from.x + e.clientX - event.clientX, y: from.y + e.clientY - event.clientY };
			app.redraw();
		};
		canvas.addEventListener("pointermove", move);
		canvas.addEventListener("pointerup", () => canvas.removeEventListener("pointermove", move), { once: true });
	}

	toggle(event, path) {
		event.stopPropagation();
		this.fold(path);
	}

	fold(path, open) {
		if (path.includes("\0")) {
			if (open !== false) this.turn(path);
			return;
		}
		const box = document.getElementById(boxId(path));
		this.toggled.set(path, open ?? box?.getAttribute("aria-expanded") !== "true");
		this.changed();
	}
	turn(key) {
		const [path, way] = key.split("\0");
		const part = shownAt(this.sight(), path);
		if (!part) return;
		this.from.set(path, Math.max(0, part.earlier + (way === "later" ? PART : -PART)));
		this.at = key;
		this.changed();
	}
}

function shownAt(whole, path) {
	if (whole.box.path === path) return whole;
	for (const each of whole.inside) {
		const found = shownAt(each, path);
		if (found) return found;
	}
	return null;
}

// --- keys ---

const KEYS = [
	["/", "search"], ["j k", "next, previous"], ["h l", "fold, unfold"], ["Enter", "open"], ["x", "choose a run"], ["c", "compare"],
	["v", "graph or timeline"], ["f", "failed steps only, or all"], ["g", "live"], ["0", "zoom off"], ["Ctrl Enter", "main action"], ["d", "deny, with a reason"], ["u", "up to the list"], ["?", "these keys"],
];

function keysView() {
	return html`
		<dialog open class="keys" aria-label="Keys">
			<table>${KEYS.map(([key, does]) => html`<tr><th scope="row"><kbd>${key}</kbd></th><td>${does}</td></tr>`)}</table>
			${button("Close", () => app.toggleHelp())}
		</dialog>`;
}

const isWriting = (target) => target instanceof HTMLElement && target.matches("input:not([type=range], [type=checkbox]), textarea, select");

function onKey(event) {
	if (event.key === "Escape") {
		if (app.help) app.toggleHelp();
		else if (isWriting(event.target)) event.target.blur();
		return;
	}
	if ((event.ctrlKey || event.metaKey) && event.key === "Enter" && !event.defaultPrevented) {
		const question = app.chosenQuestion() ?? app.run.questions[0];
		if (question && (app.route.page === "inbox" || app.route.run)) mainAction(question);
		return;
	}
	if (event.ctrlKey || event.metaKey || event.altKey || isWriting(event.target) || app.sheet) return;
	const does = DOES[event.key] ?? (app.route.run ? IN_A_RUN : app.route.page === "inbox" ? IN_THE_INBOX : IN_THE_LIST)[event.key];
	if (!does) return;
	event.preventDefault();
	does();
}

const DOES = { "?": () => app.toggleHelp(), "/": () => app.startSearch() };

const IN_A_RUN = {
	j: () => move(1),
	k: () => move(-1),
	h: () => app.fold(app.at(), false),
	l: () => app.fold(app.at(), true),
	v: () => app.go({ view: app.route.view === "graph" ? "" : "graph" }),
	f: () => app.go({ filter: app.route.filter === "failed" ? "" : "failed" }),
	c: () => app.pickOther(),
	g: () => app.go({ seq: null }),
	0: () => (app.route.view === "graph" ? app.graph.fit() : app.unzoom()),
	d: () => app.run.questions[0] && startDenying(app.run.questions[0]),
	u: () => app.go({ run: "", step: "", other: "", tab: "", view: "", filter: "", q: "", seq: null }),
};

const IN_THE_LIST = {
	j: () => step(".runs a.m, .rcard", 1),
	k: () => step(".runs a.m, .rcard", -1),
	x: () => app.choosesRun(document.activeElement?.closest("[data-run]")?.dataset.run),
	c: () => app.compareChosen(),
};

const IN_THE_INBOX = { j: () => app.nextQuestion(1), k: () => app.nextQuestion(-1), d: () => app.chosenQuestion() && startDenying(app.chosenQuestion()) };

function step(selector, by) {
	const links = [...document.querySelectorAll(selector)];
	const at = links.indexOf(document.activeElement);
	links[Math.max(0, Math.min(links.length - 1, at + by))]?.focus();
}

function move(by) {
	const stops = app.stops();
	const to = stops[Math.max(0, Math.min(stops.length - 1, stops.indexOf(app.at()) + by))];
	if (to !== undefined) app.moveTo(to);
}
function onTreeKey(event) {
	const arrows = { ArrowDown: IN_A_RUN.j, ArrowUp: IN_A_RUN.k, ArrowLeft: IN_A_RUN.h, ArrowRight: IN_A_RUN.l, Enter: IN_A_RUN.l };
	const does = arrows[event.key];
	if (!does) return;
	event.preventDefault();
	does();
}

// --- page ---

const PAGE_OF_ROWS = 5000;
const PAGE_OF_RUNS = 100;
function nothingKnown() {
	return {
		rows: [],
		outline: new Outline(),
		past: null,
		info: null,
		questions: [],
		texts: new Map(),
		talks: new Map(),
		toggled: new Map(),
		bodies: new Map(),
		raw: new Set(),
		fails: [],
		turns: null,
		folds: 0,
		all: 0,
		loaded: false,
		showedFailure: false,
	};
}

class App {
	constructor(element) {
		app = this;
		this.element = element;
		this.route = routeOf(location.hash);
		this.about = {};
		this.waiting = 0;
		this.list = { runs: [], counts: {}, pipelines: [], cursor: null, loading: true };
		this.inbox = { questions: [], answered: [], cursor: null, loading: true };
		this.run = nothingKnown();
		this.graph = new GraphReader();
		this.compared = null;
		this.overview = null;
		this.sheet = null;
		this.drafts = new Map();
		this.answers = new Map();
		this.nows = new Map();
		this.chosen = new Set();
		this.scroll = { top: 0, height: window.innerHeight };
		this.listScroll = { top: 0, height: window.innerHeight };
		this.zoom = null;
		this.dragged = null;
		this.realTime = false;
		this.connected = true;
		this.lostMs = 0;
		this.searching = false;
		this.problem = "";
		this.help = false;
		this.skewMs = 0;
		this.live = null;
		this.frame = 0;
		this.linesCache = { key: "", lines: [] };
		this.version = 0;
		const narrow = matchMedia("(max-width: 720px)");
		this.phone = narrow.matches;
		narrow.addEventListener("change", () => ((this.phone = narrow.matches), this.redraw()));
		this.onScroll = (e) => this.scrolled(e.currentTarget);
		this.onListScroll = (e) => this.listScrolled(e.currentTarget);
		this.onSearch = (e) => this.searched(e.target.value);
		this.onSlide = (e) => this.slide(Number(e.target.value));
		this.onDrag = (e) => this.dragAxis(e);
		this.unzoom = () => (this.zoom = null);
		this.more = () => this.loadList({ more: true });
		this.closeSheet = () => ((this.sheet = null), this.redraw());
		window.addEventListener("hashchange", () => this.moved());
		window.addEventListener("keydown", onKey);
		for (const name of ["click", "dblclick", "input", "change", "keydown", "wheel", "toggle"]) window.addEventListener(name, () => this.redraw(), { capture: true, passive: true });
		window.addEventListener("resize", () => ((this.listScroll.height = window.innerHeight), this.redraw()));
		setInterval(() => this.tick(), 1000);
		this.arrive();
	}
	linkTo(change, here = false) {
		const fresh = here || !("run" in change) ? this.route : { ...NOWHERE };
		return hashOf({ ...fresh, ...change });
	}

	go(change, { replace = false } = {}) {
		const to = hashOf({ ...this.route, ...change });
		if (replace) {
			history.replaceState(null, "", to);
			this.moved();
		} else location.hash = to;
	}

	moved() {
		const before = this.route;
		this.route = routeOf(location.hash);
		const { route } = this;
		this.problem = "";
		if (before.run !== route.run || before.other !== route.other || before.page !== route.page) this.arrive();
		else if (!route.run && route.page === "inbox" && before.tab !== route.tab) this.loadInbox();
		else if (route.page === "overview" && ["days", "by", "tab"].some((each) => before[each] !== route[each])) this.loadOverview();
		else if (!route.run && ["q", "status", "pipeline", "days"].some((each) => before[each] !== route[each]) || String(before.labels) !== String(route.labels)) this.loadList();
		if (before.step !== route.step) this.run.turns = null;
		this.redraw();
	}

	arrive() {
		this.live?.end();
		this.live = null;
		this.run = nothingKnown();
		this.graph = new GraphReader();
		this.compared = null;
		this.zoom = null;
		this.scroll.top = 0;
		this.listScroll.top = 0;
		const { run, other, page } = this.route;
		if (run && other) this.loadCompared();
		else if (run) this.loadRun().then(() => this.list.loading && this.loadList());
		else if (page === "inbox") this.loadInbox().then(() => this.watchList());
		else if (page === "overview") this.loadOverview().then(() => this.watchList());
		else this.loadList().then(() => this.watchList());
		this.redraw();
	}
	async try(ask) {
		try {
			return await ask();
		} catch (error) {
			this.problem = error instanceof Refused ? error.message : `The server cannot be reached: ${error}`;
			this.redraw();
			return undefined;
		}
	}

	filters({ q, status, pipeline, days, labels }) {
		return { q, status, pipeline, days, label: labels };
	}

	async loadList({ more = false, live = false } = {}) {
		const asked = this.filters(this.route);
		const cursor = more ? this.list.cursor ?? undefined : undefined;
		const reply = await this.try(() => get("runs", { ...asked, cursor, limit: PAGE_OF_RUNS }));
		if (!reply || JSON.stringify(asked) !== JSON.stringify(this.filters(this.route))) return;
		this.knows(reply);
		this.waiting = reply.waiting;
		const first = new Set(reply.runs.map((run) => run.run_id));
		const rest = live ? this.list.runs.filter((run) => !first.has(run.run_id)) : [];
		const keep = live && this.list.runs.length > PAGE_OF_RUNS;
		const runs = more ? [...this.list.runs, ...reply.runs] : keep ? [...reply.runs, ...rest] : reply.runs;
		const pipelines = [...new Set([...this.list.pipelines, ...reply.runs.map((run) => run.pipeline)])].sort();
		this.list = { runs, pipelines, counts: reply.counts, cursor: keep ? this.list.cursor : reply.cursor, loading: false };
		if (live) this.nows.clear();
		this.redraw();
	}

	sawRuns(first, end) {
		const wanted = this.list.runs.slice(first, end).filter((run) => (["running", "failed", "aborted"].includes(run.state) || isEvaluation(run)) && !this.nows.has(run.run_id)).slice(0, 40);
		if (!wanted.length) return;
		for (const run of wanted) this.nows.set(run.run_id, {});
		get("now", { run: wanted.map((run) => run.run_id) }).then((reply) => {
			for (const [id, text] of Object.entries(reply.runs)) this.nows.set(id, { text });
			this.redraw();
		}, () => undefined);
	}

	async loadInbox({ more = false } = {}) {
		const cursor = more && this.route.tab !== "answered" ? this.inbox.cursor ?? undefined : undefined;
		const [past, older] = this.route.tab === "answered" ? [await this.try(() => get("answers", { cursor: more ? this.inbox.next ?? undefined : undefined })), more ? this.inbox.answered : []] : [null, []];
		const reply = await this.try(() => get("questions", { cursor }));
		if (!reply) return;
		this.knows(reply);
		this.waiting = reply.waiting ?? reply.questions.filter((each) => each.may_answer !== false).length;
		this.inbox = { questions: cursor ? [...this.inbox.questions, ...reply.questions] : reply.questions, cursor: reply.cursor, loading: false, answered: [...older, ...(past?.answers ?? [])], next: past?.cursor ?? null };
		this.redraw();
	}

	async loadOverview() {
		const { days, by, tab } = this.route;
		if (tab) {
			this.tables = (await this.try(() => get(tab === "events" ? "waits" : tab, {}))) ?? this.tables;
			if (this.tables) this.knows(this.tables);
			this.waiting = this.tables?.waiting ?? this.waiting;
			return this.redraw();
		}
		const reply = await this.try(() => get("overview", { days: days || "14", by }));
		if (!reply || this.route.days !== days || this.route.by !== by) return;
		this.knows(reply);
		this.waiting = reply.waiting;
		this.overview = reply;
		this.redraw();
	}

	watchList() {
		if (this.route.run) return;
		this.live?.end();
		const again = () => (this.route.page === "inbox" ? this.loadInbox() : this.route.page === "overview" ? this.loadOverview() : this.loadList({ live: true }));
		this.live = new Live({ heard: { runs: again }, connected: (is) => this.isConnected(is) });
	}

	async loadRun(waitMs = 500) {
		const id = this.route.run;
		const run = this.run;
		const page = (after) => get("records", { run: id, after, limit: PAGE_OF_ROWS });
		const first = await this.try(() => page(0));
		if (this.run !== run) return;
		// It may be submitted after its page is opened, or the server may restart.
		if (!first) return void setTimeout(() => this.run === run && this.loadRun(Math.min(5000, waitMs * 2)), waitMs);
		this.problem = "";
		run.bodies.clear();
		this.heardPage(first);
		const starts = [];
		for (let after = first.next ?? Infinity; after < first.run.records; after += PAGE_OF_ROWS) starts.push(after);
		const rest = starts.map(page);
		for (const coming of rest) {
			const reply = await this.try(() => coming);
			if (!reply || this.run !== run) return;
			this.heardPage(reply);
		}
		run.loaded = true;
		this.showFailure();
		this.live = new Live({
			run: id,
			after: () => run.all,
			connected: (is) => this.isConnected(is),
			heard: {
				records: (rows) => this.take(rows),
				text: (reply) => this.heardText(reply),
				run: (reply) => this.standing(reply),
				end: () => this.live?.end(),
				problem: (reply) => this.failed(reply.error),
			},
		});
	}
	showFailure() {
		const { run, route } = this;
		const { failedPath } = run.outline;
		if (run.showedFailure || !run.loaded || this.status() !== "failed" || !failedPath) return;
		run.showedFailure = true;
		if (route.step || route.tab || route.seq !== null || route.q || route.filter || route.view) return;
		this.go({ step: failedPath }, { replace: true });
		requestAnimationFrame(() => this.show(failedPath));
	}

	heardPage(reply) {
		this.knows(reply);
		this.take(reply.rows);
		this.standing(reply.run);
	}

	async loadCompared() {
		const { run, other } = this.route;
		const reply = await this.try(() => get("compare", { a: run, b: other }));
		if (reply) this.knows(reply);
		this.compared = reply ?? null;
		this.redraw();
	}

	knows(reply) {
		const { now_ms, read_only, user, scope, tabs, pipelines, labels } = reply;
		this.about = { now_ms, read_only, user, scope, tabs: tabs ?? this.about.tabs, pipelines: pipelines ?? this.about.pipelines, labels: labels !== undefined ? labels : this.about.labels };
		this.skewMs = now_ms - Date.now();
	}
	fetched(name, query) {
		const key = JSON.stringify([name, query]);
		if (!this.answers.has(key)) {
			if (this.answers.size > 200) this.answers.clear();
			this.answers.set(key, null);
			get(name, query)
				.then((reply) => this.answers.set(key, reply), (error) => this.answers.set(key, { problem: error.message }))
				.finally(() => this.redraw());
		}
		return this.answers.get(key);
	}
	take(rows) {
		const { run } = this;
		for (const row of rows) {
			if (row[0] <= run.all) continue;
			run.rows.push(row);
			run.outline.take(row);
			run.all = row[0];
			if (row[2] === "settled") run.texts.delete(row[3]);
			if (row[2] === "settled" && row[4] !== "success" && !row[3].endsWith("/~t") && run.fails.length < 20) run.fails.push(row[0]);
		}
		this.version += 1;
		this.redraw();
	}

	heardText({ path, tail }) {
		this.run.texts.set(path, tail);
		this.redraw();
	}

	standing(reply) {
		this.run.info = reply;
		this.run.questions = reply.questions ?? [];
		this.showFailure();
		this.redraw();
	}

	failed(problem) {
		this.live?.end();
		this.problem = problem;
		this.redraw();
	}

	isConnected(is) {
		if (this.connected && !is) this.lostMs = Date.now();
		this.connected = is;
		this.redraw();
	}
	outline() {
		const { run, route } = this;
		if (route.seq === null || route.seq >= run.all) return run.outline;
		if (run.past?.seq !== route.seq) run.past = { seq: route.seq, outline: folded(run.rows, route.seq) };
		return run.past.outline;
	}

	isLive() {
		return this.route.seq === null && !ENDED.has(this.status());
	}

	isOver() {
		return ENDED.has(this.status());
	}

	status() {
		if (this.route.seq !== null) return this.outline().status;
		return this.run.info?.state ?? this.run.outline.status;
	}
	phoneView() {
		const { view } = this.route;
		if (view) return view === "tree" ? "" : view;
		return this.run.questions.length || this.run.texts.size || this.route.step || this.route.tab || this.status() === "failed" ? "details" : "";
	}

	lines() {
		const { filter, q } = this.route;
		const outline = this.outline();
		const changes = filter || q ? this.version : `${outline.shape} ${this.run.folds}`;
		const key = `${changes}\n${this.route.seq}\n${filter}\n${q}\n${this.route.run}`;
		if (this.linesCache.key !== key) this.linesCache = { key, lines: visibleLines(outline, this.run.toggled, { filter, q }) };
		return this.linesCache.lines;
	}

	foundSteps() {
		const { filter, q } = this.route;
		return filter || q ? `${count(this.lines().filter((line) => !line.folds || !line.open).length)} found` : "";
	}

	unitAt(path) {
		for (const turns of this.outline().turns.values()) {
			const found = turns.find((unit) => unit.path === path);
			if (found) return found;
		}
		return null;
	}

	emptyTree() {
		if (!this.run.loaded && !this.problem) return "loading …";
		return this.route.filter || this.route.q ? "No step like that." : "No step has begun.";
	}

	nowMs() {
		return Date.now() + this.skewMs;
	}
	axisMs() {
		const outline = this.outline();
		return this.isLive() ? this.nowMs() : outline.changedMs ?? outline.beganMs ?? 0;
	}

	waitedMs() {
		const { gaps, restMs, status } = this.outline();
		const open = (status === "paused" || status === "sleeping") && restMs !== null ? Math.max(0, this.axisMs() - restMs) : 0;
		return gaps.reduce((sum, [a, b]) => sum + b - a, open) || null;
	}

	workedMs() {
		const { beganMs, changedMs, restMs, status } = this.outline();
		if (beganMs === null) return null;
		const to = status === "running" && this.isLive() && this.status() === "running" ? this.nowMs() : restMs ?? changedMs ?? beganMs;
		return Math.max(0, to - beganMs - this.outline().gaps.reduce((sum, [a, b]) => sum + b - a, 0));
	}
	listens() {
		return this.live?.source?.readyState === EventSource.OPEN;
	}

	canResume(status) {
		return Boolean(this.run.info?.can_resume) && ["abandoned", "blocked", "queued"].includes(status);
	}
	body(seq) {
		const { bodies } = this.run;
		if (!bodies.has(seq)) {
			bodies.set(seq, null);
			get("record", { run: this.route.run, seq })
				.then((reply) => bodies.set(seq, reply), (error) => bodies.set(seq, { problem: error.message }))
				.finally(() => this.redraw());
		}
		return bodies.get(seq);
	}

	notice() {
		return this.problem ? html`<p class="problem alert failed flat" role="alert">${safe(this.problem)}</p>` : nothing;
	}

	chosenQuestion() {
		const { questions } = this.inbox;
		if (this.route.page !== "inbox") return null;
		return questions.find((each) => each.token === this.route.token) ?? (this.phone ? null : questions[0]) ?? null;
	}
	searched(text) {
		if (this.route.run || !this.route.page) return this.go({ q: text }, { replace: true });
		return this.go({ page: "", q: text });
	}

	startSearch() {
		this.searching = true;
		this.focus("#search");
	}

	announce(text) {
		this.toast = text;
		clearTimeout(this.toastTimer);
		this.toastTimer = setTimeout(() => ((this.toast = ""), this.redraw()), 6000);
		this.redraw();
	}

	async copy(text) {
		const copied = typeof text === "function" ? text() : text;
		await navigator.clipboard?.writeText(copied);
		this.announce("Copied.");
	}

	toggleHelp() {
		this.help = !this.help;
	}

	choose(path) {
		this.go({ step: path === this.route.step ? "" : path, tab: "", ...(this.phone ? { view: "details" } : {}) });
	}

	toggle(event, path) {
		event.stopPropagation();
		this.fold(path);
	}

	at() {
		return this.route.view === "graph" ? this.graph.where() : this.route.step;
	}

	stops() {
		return this.route.view === "graph" ? this.graph.stops() : this.lines().map((line) => line.key);
	}

	moveTo(key) {
		if (this.route.view === "graph") return this.graph.moveTo(key);
		this.go({ step: key }, { replace: true });
		return this.show(key);
	}

	fold(path, open) {
		if (this.route.view === "graph") return this.graph.fold(path, open);
		const line = this.lines().find((each) => each.key === path);
		if (!line?.folds) return undefined;
		this.run.toggled.set(path, open ?? !line.open);
		this.run.folds += 1;
		return (this.version += 1);
	}

	slide(seq) {
		this.go({ seq: seq >= this.run.all ? null : seq }, { replace: true });
	}

	scrolled(tree) {
		this.scroll = { top: tree.scrollTop, height: tree.clientHeight };
		this.redraw();
	}

	listScrolled(list) {
		this.listScroll = { top: list.scrollTop, height: list.clientHeight };
		if (this.list.cursor && list.scrollTop + list.clientHeight > list.scrollHeight - 400 && !this.list.loading) {
			this.list.loading = true;
			this.loadList({ more: true });
		}
		this.redraw();
	}

	show(path) {
		const tree = document.getElementById("tree");
		const index = this.lines().findIndex((line) => line.key === path);
		if (!tree || index < 0) return;
		const px = linePx();
		const top = index * px;
		if (top < tree.scrollTop) tree.scrollTop = top;
		else if (top + px + 28 > tree.scrollTop + tree.clientHeight) tree.scrollTop = top + px + 28 - tree.clientHeight;
	}
	dragAxis(event) {
		const axis = event.currentTarget;
		const box = axis.getBoundingClientRect();
		const at = (e) => Math.max(0, Math.min(1, (e.clientX - box.left) / box.width));
		const from = at(event);
		axis.setPointerCapture(event.pointerId);
		const move = (e) => ((this.dragged = [Math.min(from, at(e)), Math.max(from, at(e))]), this.redraw());
		const up = () => {
			axis.removeEventListener("pointermove", move);
			const [a, b] = this.dragged ?? [0, 0];
			const [left, right] = this.zoom ?? [0, 1];
			if (b - a > 0.01) this.zoom = [left + a * (right - left), left + b * (right - left)];
			this.dragged = null;
			this.redraw();
		};
		axis.addEventListener("pointermove", move);
		axis.addEventListener("pointerup", up, { once: true });
	}

	openRaw(seq, open) {
		if (open) this.run.raw.add(seq);
	}

	async change(name, body) {
		const reply = await post(name, body);
		this.announce(reply?.status ? `Event ${reply.status}.` : reply?.run_id ? "A worker starts the run." : "Done.");
		await this.loadOverview();
	}

	actHere(name, more) {
		return this.try(() => post(name, { run: this.route.run, ...more }));
	}

	async steer(event, path) {
		event.preventDefault();
		const { message } = event.target.elements;
		if (await this.actHere("steer", { path, message: message.value })) message.value = "";
	}

	retry() {
		this.openSheet("retry", { runs: [this.run.info] });
	}

	async fork(seq) {
		const reply = await this.actHere("fork", { seq });
		if (reply) this.go({ run: reply.run_id, step: "", seq: null, tab: "" });
	}
	choosesRun(id) {
		if (!id) return;
		if (!this.chosen.delete(id)) this.chosen.add(id);
		this.everyMatch = false;
	}

	clearChoice() {
		this.chosen.clear();
		this.everyMatch = false;
	}

	chooseAll() {
		this.everyMatch = false;
		this.chosen = new Set(this.chosen.size === this.list.runs.length ? [] : this.list.runs.map((run) => run.run_id));
	}

	pickOther() {
		this.openSheet("compare", { q: "" });
		this.focus("#other");
	}

	compareChosen() {
		const [run, other] = [...this.chosen];
		if (this.chosen.size === 2) this.go({ run, other, q: "", status: "" });
	}

	openRow(event, id) {
		if (!event.target.closest("a, button, input")) location.hash = this.linkTo({ run: id });
	}

	addLabel(event) {
		event.preventDefault();
		const input = event.target.elements.label;
		const label = input.value.trim().replace("=", ":");
		input.value = "";
		if (/^[^:]+:.+/.test(label) && !this.route.labels.includes(label)) this.go({ labels: [...this.route.labels, label] });
	}
	openSheet(name, facts = {}) {
		this.sheet = { name, ...facts };
		if (name === "start") this.startWith(this.about.pipelines[0]);
		if (facts.runs) this.preview(name);
		this.redraw();
	}

	async startWith(pipeline) {
		this.sheet.pipeline = pipeline;
		const reply = await get("pipeline", { name: pipeline }).catch((error) => ({ problem: error.message }));
		if (this.sheet?.pipeline !== pipeline) return;
		this.sheet.problem = reply.problem ?? "";
		this.sheet.draft = reply.form ? new Draft(reply.form) : null;
		this.redraw();
	}

	async startRun() {
		const { sheet } = this;
		const input = sheet.draft?.value();
		if (sheet.draft?.wrong.size) return this.redraw();
		const labels = Object.fromEntries((sheet.labels ?? "").split(/\s+/).filter(Boolean).map((each) => each.split(/[=:](.*)/s).slice(0, 2)));
		return this.send(sheet, async () => {
			const reply = await post("start", { pipeline: sheet.pipeline, input: input === undefined ? null : input, labels });
			this.closeSheet();
			this.go({ ...NOWHERE, run: reply.run_id });
		});
	}
	async send(sheet, call) {
		if (sheet.busy) return;
		Object.assign(sheet, { busy: true, problem: "" });
		this.redraw();
		try {
			await call();
		} catch (error) {
			sheet.problem = error instanceof Error ? error.message : String(error);
			sheet.draft?.refuse(sheet.problem);
			if (sheet.draft?.wrong.has("") === false) sheet.problem = "";
		}
		sheet.busy = false;
		this.redraw();
	}

	preview(name) {
		const { sheet } = this;
		const { where, runs } = sheet;
		return this.send(sheet, async () => (sheet.preview = await post("bulk", { action: name, dry_run: true, ...(where ? { where } : { runs: runs.map((run) => run.run_id) }) })));
	}

	async bulk(name) {
		const { sheet } = this;
		const { where, reason, preview: { count, fit: runs, now_ms: before_ms } } = sheet;
		await this.send(sheet, async () => {
			const reply = await post("bulk", { action: name, reason, ...(where ? { where, count, before_ms } : { runs }) });
			sheet.results = { ...Object.fromEntries((runs ?? []).map((run) => [run, "done"])), ...reply.skipped };
			if (where || !reply.skipped_count) this.closeSheet();
			this.announce(reply.sentence);
			this.clearChoice();
			if (!this.route.run) await this.loadList();
			else if (name === "retry") this.arrive();
		});
	}

	async sendAnswer(question, answer) {
		const draft = draftOf(question);
		if (draft.busy) return;
		Object.assign(draft, { busy: true, problem: "" });
		try {
			await post("answer", { token: question.token, answer });
			this.answered(question);
		} catch (error) {
			this.answerRefused(question, draft, error);
		}
		draft.busy = false;
		this.redraw();
	}

	answered(question) {
		this.drafts.delete(question.token);
		this.announce("Answered.");
		this.forget(question);
		if (this.route.page === "inbox") this.go({ ...NOWHERE, run: question.run_id });
	}

	forget(question) {
		this.run.questions = this.run.questions.filter((each) => each.token !== question.token);
		this.inbox.questions = this.inbox.questions.filter((each) => each.token !== question.token);
		this.waiting = Math.max(0, this.waiting - 1);
	}

	answerRefused(question, draft, error) {
		const sentence = error instanceof Error ? error.message : String(error);
		if (error instanceof Refused && [404, 409].includes(error.status)) {
			this.problem = sentence;
			this.forget(question);
		} else if (draft.fields) {
			draft.fields.refuse(sentence);
			this.focus(WRONG);
		} else draft.problem = sentence;
	}

	nextQuestion(by) {
		const { questions } = this.inbox;
		const at = questions.indexOf(this.chosenQuestion()) + by;
		if (questions[at]) this.go({ token: questions[at].token }, { replace: true });
	}
	tick() {
		if (document.hidden) return;
		const { run, other, page } = this.route;
		const moves = run ? !other && this.isLive() && ["running", "waiting"].includes(this.status()) : page === "inbox" || this.list.runs.length > 0;
		if (moves || !this.connected) this.redraw();
	}

	redraw() {
		this.frame ||= requestAnimationFrame(() => {
			this.frame = 0;
			this.draw();
		});
	}

	// Now: keys pressed before the next frame belong to the field.
	focus(selector) {
		this.draw();
		document.querySelector(selector)?.focus();
	}

	view() {
		const { route } = this;
		if (route.run) return route.other ? compareView() : runView();
		return route.page === "inbox" ? inboxView() : route.page === "overview" ? overviewView() : listView();
	}

	draw() {
		const { activeElement: focused } = document;
		render(html`${frame(this.view())}${this.sheet ? sheet() : nothing}${this.help ? keysView() : nothing}<div class="toast" role="status">${this.toast || nothing}</div>`, this.element);
		if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
		const opened = document.querySelector("dialog.sheet");
		if (opened && !opened.open) opened.showModal();
		this.entitle();
		if (this.route.view === "graph") this.graph.drawn();
		const tree = document.getElementById("tree");
		if (tree && tree.clientHeight !== this.scroll.height) this.scrolled(tree);
	}

	entitle() {
		const { run, other, page } = this.route;
		const name = run ? (other ? "Compare" : titleOf(this.run.info ?? { run_id: run, pipeline: "Run" })) : page === "inbox" ? "Inbox" : page === "overview" ? "Overview" : "Runs";
		const title = `${this.waiting ? `(${this.waiting}) ` : ""}${safe(String(name))}`;
		if (document.title !== title) document.title = title;
	}
}

keptTheme();
const element = document.getElementById("page");
element.textContent = "";
window.runPage = new App(element);
