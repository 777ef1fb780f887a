// Pure parts of the page: the outline of a run, its lines, axis and graph.

export function duration(ms) {
	if (ms === null || ms === undefined || !Number.isFinite(ms)) return "";
	if (ms < 1) return "<1 ms";
	if (ms < 1000) return `${Math.round(ms)} ms`;
	if (ms < 99_950) return ms < 59_500 ? `${(ms / 1000).toFixed(ms < 9_995 ? 2 : 1)} s` : parts(ms);
	return parts(ms);
}
function parts(ms) {
	const seconds = Math.round(ms / 1000);
	const [d, h, m, s] = [Math.floor(seconds / 86_400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60, seconds % 60];
	if (d) return h ? `${d} d ${h} h` : `${d} d`;
	if (h) return m ? `${h} h ${m} m` : `${h} h`;
	return s ? `${m} m ${s} s` : `${m} m`;
}

// --- outline of a run ---

const CROWD = 8;

const NOT_A_STEP = /^~[agut]/;
const NUMBERED = /^~([a-z])(\d*)$/;

const before = (path) => path.slice(0, Math.max(0, path.lastIndexOf("/")));

const last = (path) => path.slice(path.lastIndexOf("/") + 1);
export function parentOf(path) {
	let around = before(path);
	while (around && NOT_A_STEP.test(last(around))) around = before(around);
	return around;
}

const LIBRARY_NAMES = { "~f": "fallback", "~e": "escalation", "~t": "tried", "~r": "rejection", "~l": "review", "~k": "judge", "~default": "default" };
export function lastName(path) {
	const segment = last(path);
	const known = LIBRARY_NAMES[segment];
	if (known) return known;
	const [, letter, number] = NUMBERED.exec(segment) ?? [];
	if (letter === "i") return `[${number}]`;
	if (letter === "h") return `handler ${number}`;
	if (/^~c/.test(segment)) return "compensation";
	return letter ? segment : segment.replaceAll("~1", "/").replaceAll("~0", "~");
}
export function stepOf(path) {
	const at = path.indexOf("/~u");
	if (at < 0) return path;
	const step = path.slice(0, at);
	return last(step).startsWith("~g") ? before(step) : step;
}
export function declaredPath(path) {
	return path.includes("~") ? path.replace(/\/~[agut][^/]*/g, "").replace(/~i\d+/g, "~i") : path;
}

function newGroup(path) {
	return {
		path, name: lastName(path), last: path, seen: 0, running: 0, success: 0, failure: 0, waiting: 0, aborted: 0,
		latencyMs: 0, tokens: 0, cost: 0,
	};
}

function newNode(path, group) {
	return {
		path, name: lastName(path), status: "running", beganMs: null, latencyMs: 0, tokens: 0, cost: 0, attempts: 1,
		note: "", of: 0, children: [], inside: [], running: new Set(), done: 0, failed: 0, waiting: 0, countedTokens: 0,
		countedCost: 0, seq: 0, firstMs: null, endMs: null, tries: [], group,
	};
}

export class Outline {
	constructor() {
		this.nodes = new Map([["", newNode("", newGroup(""))]]);
		this.groups = new Map();
		this.seq = 0;
		this.status = "running";
		this.beganMs = null;
		this.changedMs = null;
		this.feedback = "";
		this.origin = "";
		this.questions = new Map();
		this.units = new Map();
		this.turns = new Map();
		this.shape = 0;
		this.waits = [];
		this.gaps = [];
		this.restMs = null;
		this.failedPath = "";
	}

	get root() {
		return this.nodes.get("");
	}

	get tokens() {
		return this.root.countedTokens;
	}

	get cost() {
		return this.root.countedCost;
	}
	take(row) {
		const [seq, atMs, kind, path] = row;
		this.seq = Math.max(this.seq, seq);
		this.changedMs = atMs ?? this.changedMs;
		switch (kind) {
			case "admitted":
				this.beganMs = atMs;
				this.origin = row[9];
				break;
			case "started": this.#start(row); break;
			case "settled": this.#settle(row); break;
			case "intent": this.#intend(row); break;
			case "unit": this.#unit(row); break;
			case "paused": this.#pause(row); break;
			case "answered": this.#answer(path, seq, atMs); break;
			case "compacted": this.#compact(path); break;
			case "retried": case "resumed": this.#continue(atMs); break;
			case "ended": this.#end(row); break;
		}
	}

	#compact(path) {
		const loop = this.#node(parentOf(path));
		loop.compacted = Number(path.split("/~i").pop()) || 0;
		loop.done = Math.max(loop.done, loop.compacted);
	}

	#continue(atMs) {
		this.status = "running";
		if (this.restMs !== null && atMs !== null) this.gaps.push([this.restMs, atMs]);
		this.restMs = null;
		this.failedPath = "";
	}

	#node(path) {
		return this.nodes.get(path) ?? this.#unknown(path);
	}
	#unknown(path) {
		this.shape += 1;
		const missing = [path];
		for (let around = parentOf(path); !this.nodes.has(around); around = parentOf(around)) missing.push(around);
		for (const each of missing.reverse()) {
			const node = newNode(each, this.#join(each));
			this.nodes.set(each, node);
			const parent = this.nodes.get(parentOf(each));
			parent.children.push(each);
			parent.inside.push(node);
			parent.running.add(each);
		}
		return this.nodes.get(path);
	}
	#join(path) {
		const declared = declaredPath(path);
		const group = this.groups.get(declared) ?? newGroup(declared);
		if (!group.seen) this.groups.set(declared, group);
		group.seen += 1;
		group.running += 1;
		group.last = path;
		return group;
	}

	#start(row) {
		const node = this.#node(row[3]);
		this.#restate(node, "running");
		this.#tell(node, row);
	}

	#tell(node, row) {
		node.name = row[10] || node.name;
		node.group.name = node.name;
		if (row[1] !== null) node.beganMs = row[1] - row[5];
		node.firstMs ??= node.beganMs;
		if (row[11]) {
			const parent = this.#node(parentOf(node.path));
			parent.of = Math.max(parent.of, row[11]);
		}
	}

	#settle(row) {
		if (row[3].endsWith("/~t")) {
			this.#tryAgain(row);
			return;
		}
		const node = this.#node(row[3]);
		this.#tell(node, row);
		[, , , , , node.latencyMs, node.tokens, node.cost, node.attempts, node.note] = row;
		node.seq = row[0];
		node.endMs = row[1];
		if (row[4] !== "success") this.failedPath ||= row[3];
		if (row[4] === "success" && this.failedPath.startsWith(`${row[3]}/`)) this.failedPath = "";
		node.group.latencyMs += row[5];
		this.#count(node, row[6], row[7]);
		this.#cutShort(node);
		this.#restate(node, row[4] === "success" ? "success" : "failure");
	}

	#tryAgain(row) {
		const node = this.#node(row[3].slice(0, -3));
		node.attempts = row[8] + 1;
		node.note = row[9];
		node.tries.push(row);
		this.#count(node, row[6], row[7]);
		this.#cutShort(node);
	}

	#intend(row) {
		const [seq, atMs, , path] = row;
		const unit = { path, name: row[10] || last(path), note: row[9], done: false, seq, askedSeq: seq, atMs, fromMs: atMs, tokens: 0, cost: 0 };
		this.units.set(path, unit);
		this.#turnsOf(path).push(unit);
	}
	#turnsOf(path) {
		const step = stepOf(path);
		this.shape += 1;
		const turns = this.turns.get(step) ?? [];
		this.turns.set(step, turns);
		return turns;
	}

	#unit(row) {
		const [seq, atMs, , path] = row;
		const node = this.#node(stepOf(path));
		const turns = this.#turnsOf(path);
		const known = turns.find((unit) => unit.path === path);
		if (known) Object.assign(known, { done: true, seq, atMs, tokens: row[6], cost: row[7], note: row[9] || known.note });
		else turns.push({ path, name: row[10] || last(path), note: row[9], done: true, seq, askedSeq: 0, atMs, fromMs: atMs, tokens: row[6], cost: row[7] });
		this.units.delete(path);
		this.#spend(node, row[6], row[7]);
	}

	#pause(row) {
		const node = this.#node(stepOf(row[3]));
		this.#tell(node, row);
		this.units.delete(row[3]);
		node.note = row[9];
		node.naps = row[4] === "sleeping";
		this.questions.set(node.path, row[9]);
		const unit = row[3] === node.path ? "" : row[3].replace(/~[0-9a-f]+$/, "");
		this.waits.push({ path: node.path, unit, from: row[1], to: null, seq: row[0], answerSeq: 0, note: row[9], naps: node.naps });
		this.#count(node, row[6], row[7]);
		this.#restate(node, "waiting");
	}

	#answer(path, seq, atMs) {
		const node = this.#node(stepOf(path));
		const open = this.waits.find((each) => each.path === node.path && each.to === null);
		if (open) Object.assign(open, { to: atMs, answerSeq: seq });
		this.questions.delete(node.path);
		this.#restate(node, "running");
	}

	#end(row) {
		if (row[3] !== "") return;
		this.status = row[4] || "aborted";
		this.restMs = row[1];
		this.feedback = row[9];
		if (this.status === "paused" || this.status === "sleeping") return;
		this.#cutShort(this.root);
		this.questions.clear();
		this.units.clear();
	}
	#cutShort(node) {
		const over = [node];
		for (let each = over.pop(); each; each = over.pop()) {
			this.questions.delete(each.path);
			for (const child of this.#openIn(each)) {
				this.#restate(child, "aborted");
				over.push(child);
			}
		}
	}

	#openIn(node) {
		const paths = [...node.running];
		if (node.waiting) paths.push(...node.children.filter((path) => this.nodes.get(path)?.status === "waiting"));
		return paths.map((path) => this.nodes.get(path));
	}

	#restate(node, status) {
		if (node.path === "") return;
		const parent = this.nodes.get(parentOf(node.path));
		parent.running.delete(node.path);
		if (node.status === "success") parent.done -= 1;
		else if (node.status === "failure") parent.failed -= 1;
		else if (node.status === "waiting") parent.waiting -= 1;
		node.group[node.status] -= 1;
		node.group[status] += 1;
		node.status = status;
		if (status === "running") parent.running.add(node.path);
		else if (status === "success") parent.done += 1;
		else if (status === "failure") parent.failed += 1;
		else if (status === "waiting") parent.waiting += 1;
	}
	#count(node, tokens, cost) {
		this.#spend(node, tokens - node.countedTokens, cost - node.countedCost);
	}

	#spend(node, tokens, cost) {
		if (!tokens && !cost) return;
		for (let path = node.path; ; path = parentOf(path)) {
			const each = this.nodes.get(path);
			each.countedTokens += tokens;
			each.countedCost += cost;
			each.group.tokens += tokens;
			each.group.cost += cost;
			if (path === "") return;
		}
	}
}
export function folded(rows, upTo = Infinity) {
	const outline = new Outline();
	for (const row of rows) {
		if (row[0] > upTo) break;
		outline.take(row);
	}
	return outline;
}

// --- visible lines of a tree ---

export const isCrowd = (node) => Math.max(node.children.length, node.of) > CROWD;
function isOpen(node, toggled) {
	return toggled.get(node.path) ?? !isCrowd(node);
}

export function visibleLines(outline, toggled, wanted) {
	const kept = wanted.filter || wanted.q ? matching(outline, wanted) : null;
	const lines = [];
	const pending = [{ children: inOrder(outline.root), next: 0 }];
	while (pending.length) {
		const level = pending.length;
		const around = pending[level - 1];
		if (around.next === around.children.length) {
			pending.pop();
			continue;
		}
		const node = around.children[around.next];
		around.next += 1;
		if (kept && !kept.has(node.path)) continue;
		const turns = outline.turns.size ? outline.turns.get(node.path) : undefined;
		const folds = node.children.length > 0 || turns !== undefined;
		const open = folds && (kept ? true : isOpen(node, toggled));
		lines.push(lineOf(node, level, folds, open));
		if (!open) continue;
		if (!kept && turns) for (const unit of turns) lines.push({ key: unit.path, level: level + 1, node, unit, folds: false, open: false });
		if (node.children.length) pending.push({ children: inOrder(node), next: 0 });
	}
	return lines;
}
const known = new WeakMap();

function lineOf(node, level, folds, open) {
	const before = known.get(node);
	if (before && before.level === level && before.folds === folds && before.open === open) return before;
	const line = { key: node.path, level, node, unit: null, folds, open };
	known.set(node, line);
	return line;
}

const ordered = new WeakMap();
function inOrder(node) {
	if (!isCrowd(node)) return node.inside;
	const before = ordered.get(node);
	if (before?.length === node.inside.length) return before;
	const number = (path) => Number(/\/~i(\d+)$/.exec(path)?.[1] ?? Infinity);
	const numbers = node.inside.map((each) => [number(each.path), each]);
	const now = numbers.sort((a, b) => a[0] - b[0]).map(([, each]) => each);
	ordered.set(node, now);
	return now;
}
function matching(outline, { filter, q }) {
	const statuses = { failed: "failure", running: "running", waiting: "waiting" }[filter] ?? filter;
	const text = q.toLowerCase();
	const kept = new Set();
	for (const [path, node] of outline.nodes) {
		if (path === "" || (filter && node.status !== statuses)) continue;
		if (filter === "failed" && node.children.some((child) => outline.nodes.get(child)?.status === "failure")) continue;
		if (text && !`${node.name}\n${path}\n${node.note}`.toLowerCase().includes(text)) continue;
		kept.add(path);
	}
	const found = new Set(kept);
	for (const path of found) {
		for (let at = path.lastIndexOf("/"); at > 0; at = path.lastIndexOf("/", at - 1)) {
			const around = path.slice(0, at);
			if (outline.nodes.has(around)) kept.add(around);
		}
	}
	return kept;
}
export function countsOf(node) {
	const open = node.running.size;
	const toGo = Math.max(0, node.of - node.done - node.failed - node.waiting - open);
	return { done: node.done, failed: node.failed, waiting: node.waiting, running: open, toGo, all: Math.max(node.of, node.children.length) };
}

// --- axis of a timeline: worked time, long rests as bands ---

const LONG = 0.05;
const BAND = 0.08;

export function axisOf(outline, nowMs, { real, zoom }) {
	const from = outline.beganMs ?? 0;
	const resting = outline.restMs !== null && (outline.status === "paused" || outline.status === "sleeping");
	const to = Math.max(from + 1, outline.restMs === null || resting ? nowMs : outline.changedMs ?? from);
	const rests = [...outline.gaps, ...(resting ? [[outline.restMs, to]] : [])];
	const worked = Math.max(1, to - from - rests.reduce((sum, [a, b]) => sum + (b - a), 0));
	const long = real ? [] : rests.filter(([a, b]) => b - a > worked * LONG);
	const band = long.length ? Math.min(BAND, 0.5 / long.length) : 0;
	const shortMs = to - from - long.reduce((sum, [a, b]) => sum + (b - a), 0);
	const scale = (1 - band * long.length) / Math.max(1, shortMs);
	const corners = [[from, 0]];
	for (const [a, b] of long) {
		const [ms, x] = corners[corners.length - 1];
		const start = x + (a - ms) * scale;
		corners.push([a, start], [b, start + band]);
	}
	const [lastMs, lastX] = corners[corners.length - 1];
	corners.push([Math.max(to, lastMs + 1), lastX + Math.max(to - lastMs, 1) * scale]);
	const [left, right] = zoom ?? [0, 1];
	const at = (ms) => (between(corners, ms, 0, 1) - left) / (right - left);
	const ms = (x) => between(corners, left + x * (right - left), 1, 0);
	const gaps = long.map(([a, b]) => ({ x: at(a), w: at(b) - at(a), text: duration(b - a) }));
	return { at, ms, gaps, ticks: ticksOf(shortMs * (right - left), at, corners, long, [left, right]) };
}

function between(corners, value, given, wanted) {
	let i = 1;
	while (i < corners.length - 1 && corners[i][given] < value) i += 1;
	const [a, b] = [corners[i - 1], corners[i]];
	const share = (value - a[given]) / Math.max(1e-9, b[given] - a[given]);
	return a[wanted] + Math.max(0, Math.min(1, share)) * (b[wanted] - a[wanted]);
}
function ticksOf(spanMs, at, corners, long, [left, right]) {
	const rough = Math.max(1, spanMs / 5);
	const power = 10 ** Math.floor(Math.log10(rough));
	const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough) ?? power * 10;
	const from = corners[0][0];
	const ticks = [];
	for (let worked = 0, ms = from, i = 0; ticks.length < 60 && i < 2000; i += 1, worked = i * step) {
		ms = from + worked + long.reduce((sum, [a, b]) => (a - from - sum < worked ? sum + (b - a) : sum), 0);
		if (ms > corners[corners.length - 1][0]) break;
		const x = at(ms);
		if (x >= 0 && x <= 1) ticks.push({ x, text: label(worked, step) });
	}
	const bands = long.map(([a, b]) => [at(a), at(b)]);
	return ticks.filter(({ x }) => !bands.some(([a, b]) => x > a - 0.04 && x < b + 0.04 && right > left));
}

function label(ms, step) {
	if (step < 1000) return ms < 1000 ? `${Math.round(ms)} ms` : `${+(ms / 1000).toFixed(3)} s`;
	return ms < 60_000 ? `${ms / 1000} s` : duration(ms);
}

// --- boxes of a graph ---

export const PART = 16;
const MOST = 32;
const ASIDE = /\/~[fcehrlk][^/]*$/;
const byNumber = new Intl.Collator("en", { numeric: true });
const ACROSS = new Set(["parallel", "branch", "selection"]);
export const isAside = (box) => ASIDE.test(box.path);
export const isAcross = (box) => ACROSS.has(box.kind);
export function boxesOf(declared, outline) {
	const boxes = new Map([["", { path: "", kind: "pipeline", name: "", when: "", inside: [] }]]);
	const box = (path, kind, name = "", when = "") => {
		const made = { path, kind, name, when, inside: [] };
		boxes.set(path, made);
		const around = parentOf(path);
		(boxes.get(around) ?? box(around, "step")).inside.push(made);
		return made;
	};
	for (const [path, kind, name, when] of declared) if (!boxes.has(path)) box(path, kind, name, when);
	for (const path of outline.groups.keys()) if (!boxes.has(path)) box(path, kindOf(outline, path));
	return boxes.get("");
}
function kindOf(outline, path) {
	const last = outline.groups.get(path)?.last;
	return last && outline.nodes.get(last)?.of ? "parallel" : "step";
}
function insideOf(box) {
	return box.inside.flatMap((each) => (each.path.endsWith("/~i") && each.kind === "pipeline" ? each.inside : [each]));
}
export function inSight(root, outline, toggled, from) {
	const whole = shownBox(root, 0);
	let drawn = 0;
	for (const pending = [whole]; pending.length; ) {
		const next = pending.shift();
		const inside = insideOf(next.box);
		const few = !isAcross(next.box) || inside.length <= CROWD;
		const fits = drawn + Math.min(inside.length, PART) <= MOST;
		next.open = inside.length > 0 && (next === whole || (toggled.get(next.box.path) ?? (few && fits)));
		if (!next.open) continue;
		const first = from.get(next.box.path) ?? whereItHappens(inside, outline);
		next.earlier = Math.max(0, Math.min(first, inside.length - PART));
		next.inside = inside.slice(next.earlier, next.earlier + PART).map((each) => shownBox(each, next.level + 1));
		next.later = inside.length - next.earlier - next.inside.length;
		drawn += next.inside.length;
		pending.push(...next.inside);
	}
	return whole;
}

function shownBox(box, level) {
	return { box, level, open: false, inside: [], earlier: 0, later: 0 };
}
function whereItHappens(boxes, outline) {
	if (boxes.length <= PART) return 0;
	const at = boxes.findIndex(({ path }) => statusOf(outline.groups.get(path)) !== "success");
	return at < 0 ? 0 : Math.max(0, at - 2);
}
export function stopsOf(whole) {
	return [
		...(whole.earlier ? [earlierKey(whole)] : []),
		...whole.inside.flatMap((each) => [each.box.path, ...stopsOf(each)]),
		...(whole.later ? [laterKey(whole)] : []),
	];
}
export const earlierKey = ({ box }) => `${box.path}\0earlier`;
export const laterKey = ({ box }) => `${box.path}\0later`;
export function statusOf(group) {
	if (!group) return "pending";
	if (group.waiting) return "waiting";
	if (group.running) return "running";
	if (group.failure) return "failure";
	return group.success ? "success" : "aborted";
}
export function isWanted(box, outline, { filter, q }) {
	const group = outline.groups.get(box.path);
	const counted = { failed: group?.failure, running: group?.running, waiting: group?.waiting }[filter];
	const named = `${group?.name ?? lastName(box.path)}\n${box.path}`.toLowerCase().includes(q.toLowerCase());
	if ((!filter || counted) && named) return true;
	return box.inside.some((each) => isWanted(each, outline, { filter, q }));
}
export function stepsOf(outline, path, most) {
	const found = { failure: [], waiting: [], running: [], aborted: [], success: [] };
	for (const node of outline.nodes.values()) {
		if (node.path && node.group.path === path && found[node.status].length < most) found[node.status].push(node);
	}
	return Object.values(found).flatMap((nodes) => nodes.sort((a, b) => byNumber.compare(a.path, b.path))).slice(0, most);
}
