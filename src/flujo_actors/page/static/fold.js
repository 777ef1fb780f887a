// @ts-check
// The outline of a run, folded from light rows in the order of their seq: the same rules as `_core/outline.py`, and a
// test folds random journals with both. Pure: rows go in, nodes come out.

export const CROWD = 8;

/** @typedef {[seq: number, atMs: number | null, kind: string, path: string, status: string | null, latencyMs: number,
 *   tokens: number, cost: number, attempts: number, note: string, name: string, of: number]} Row */

/**
 * @typedef {object} Node
 * @property {string} path
 * @property {string} name
 * @property {string} status running, success, failure, waiting or aborted
 * @property {number | null} beganMs
 * @property {number} latencyMs
 * @property {number} tokens
 * @property {number} cost
 * @property {number} attempts
 * @property {string} note
 * @property {number} of how many children it is known to get
 * @property {string[]} children
 * @property {Node[]} inside the same, themselves
 * @property {Set<string>} running
 * @property {number} done
 * @property {number} failed
 * @property {number} waiting
 * @property {number} countedTokens
 * @property {number} countedCost
 * @property {number} seq the record that settled it last, 0 if none has
 * @property {Row[]} tries what is known of its failed attempts
 * @property {Group} group the steps of the same declaration
 */

/**
 * All steps of one declaration: every item of a map and every turn of a loop has one, and they are counted together.
 * @typedef {object} Group
 * @property {string} path theirs, with `~i` for any item or turn
 * @property {string} name
 * @property {string} last the path of the one that was heard of last
 * @property {number} seen
 * @property {number} running
 * @property {number} success
 * @property {number} failure
 * @property {number} waiting
 * @property {number} aborted
 * @property {number} latencyMs of those that settled, all in all
 * @property {number} tokens
 * @property {number} cost
 */

/** @typedef {{path: string, name: string, note: string, done: boolean, seq: number, atMs: number | null,
 *   askedSeq: number, tokens: number, cost: number}} Unit */

const NOT_A_STEP = /^~[agut]/;
const NUMBERED = /^~([a-z])(\d*)$/;

/** @param {string} path */
const before = (path) => path.slice(0, Math.max(0, path.lastIndexOf("/")));

/** @param {string} path */
const last = (path) => path.slice(path.lastIndexOf("/") + 1);

/** The step around a step; "" is the run itself. @param {string} path */
export function parentOf(path) {
  let around = before(path);
  while (around && NOT_A_STEP.test(last(around))) around = before(around);
  return around;
}

const LIBRARY_NAMES = /** @type {Record<string, string>} */ ({ f: "fallback", c: "compensation", e: "escalation", t: "tried" });

/** What the last segment of a path is called. @param {string} path */
export function lastName(path) {
  const segment = last(path);
  const numbered = NUMBERED.exec(segment);
  if (!numbered) return segment.replaceAll("~1", "/").replaceAll("~0", "~");
  const [, letter, number] = numbered;
  if (letter === "i") return `[${number}]`;
  if (letter === "h") return `handler ${number}`;
  return LIBRARY_NAMES[letter] ?? segment;
}

/** The granular step that a unit belongs to; any other path is its own. @param {string} path */
export function stepOf(path) {
  const at = path.indexOf("/~u");
  if (at < 0) return path;
  const step = path.slice(0, at);
  return last(step).startsWith("~g") ? before(step) : step;
}

/** What a path is in the declaration, whichever item, turn or attempt it belongs to. @param {string} path */
export function declaredPath(path) {
  return path.includes("~") ? path.replace(/\/~[agut][^/]*/g, "").replace(/~i\d+/g, "~i") : path;
}

/** @param {string} path @returns {Group} */
function newGroup(path) {
  return {
    path, name: lastName(path), last: path, seen: 0, running: 0, success: 0, failure: 0, waiting: 0, aborted: 0,
    latencyMs: 0, tokens: 0, cost: 0,
  };
}

/** @param {string} path @param {Group} group @returns {Node} */
function newNode(path, group) {
  return {
    path, name: lastName(path), status: "running", beganMs: null, latencyMs: 0, tokens: 0, cost: 0, attempts: 1,
    note: "", of: 0, children: [], inside: [], running: new Set(), done: 0, failed: 0, waiting: 0, countedTokens: 0,
    countedCost: 0, seq: 0, tries: [], group,
  };
}

export class Outline {
  constructor() {
    /** @type {Map<string, Node>} */
    this.nodes = new Map([["", newNode("", newGroup(""))]]);
    /** @type {Map<string, Group>} */
    this.groups = new Map();
    this.seq = 0;
    this.status = "running";
    /** @type {number | null} */
    this.beganMs = null;
    /** @type {number | null} */
    this.changedMs = null;
    this.feedback = "";
    this.origin = "";
    /** @type {Map<string, string>} */
    this.questions = new Map();
    /** What is under way. @type {Map<string, Unit>} */
    this.units = new Map();
    /** The model turns and tool calls of granular steps, by the step. @type {Map<string, Unit[]>} */
    this.turns = new Map();
    /** Changes whenever there is a step or a unit that was not there before. */
    this.shape = 0;
  }

  get root() {
    return /** @type {Node} */ (this.nodes.get(""));
  }

  get tokens() {
    return this.root.countedTokens;
  }

  get cost() {
    return this.root.countedCost;
  }

  /** Take the next row into account. @param {Row} row */
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
      case "answered": this.#answer(path); break;
      case "resumed": this.status = "running"; break;
      case "ended": this.#end(row); break;
    }
  }

  /** @param {string} path @returns {Node} */
  #node(path) {
    return this.nodes.get(path) ?? this.#unknown(path);
  }

  /** A step that was not known, and those around it that were not. @param {string} path */
  #unknown(path) {
    this.shape += 1;
    const missing = [path];
    for (let around = parentOf(path); !this.nodes.has(around); around = parentOf(around)) missing.push(around);
    for (const each of missing.reverse()) {
      const node = newNode(each, this.#join(each));
      this.nodes.set(each, node);
      const parent = /** @type {Node} */ (this.nodes.get(parentOf(each)));
      parent.children.push(each);
      parent.inside.push(node);
      parent.running.add(each);
    }
    return /** @type {Node} */ (this.nodes.get(path));
  }

  /** The group of a step that is new. @param {string} path */
  #join(path) {
    const declared = declaredPath(path);
    const group = this.groups.get(declared) ?? newGroup(declared);
    if (!group.seen) this.groups.set(declared, group);
    group.seen += 1;
    group.running += 1;
    group.last = path;
    return group;
  }

  /** @param {Row} row */
  #start(row) {
    const node = this.#node(row[3]);
    this.#restate(node, "running");
    this.#tell(node, row);
  }

  /** @param {Node} node @param {Row} row */
  #tell(node, row) {
    node.name = row[10] || node.name;
    node.group.name = node.name;
    if (row[1] !== null) node.beganMs = row[1] - row[5];
    if (row[11]) {
      const parent = this.#node(parentOf(node.path));
      parent.of = Math.max(parent.of, row[11]);
    }
  }

  /** @param {Row} row */
  #settle(row) {
    if (row[3].endsWith("/~t")) {
      this.#tryAgain(row);
      return;
    }
    const node = this.#node(row[3]);
    this.#tell(node, row);
    [, , , , , node.latencyMs, node.tokens, node.cost, node.attempts, node.note] = row;
    node.seq = row[0];
    node.group.latencyMs += row[5];
    this.#count(node, row[6], row[7]);
    this.#cutShort(node);
    this.#restate(node, row[4] === "success" ? "success" : "failure");
  }

  /** @param {Row} row */
  #tryAgain(row) {
    const node = this.#node(row[3].slice(0, -3));
    node.attempts = row[8] + 1;
    node.note = row[9];
    node.tries.push(row);
    this.#count(node, row[6], row[7]);
    this.#cutShort(node);
  }

  /** @param {Row} row */
  #intend(row) {
    const [seq, atMs, , path] = row;
    const unit = { path, name: row[10] || last(path), note: row[9], done: false, seq, askedSeq: seq, atMs, tokens: 0, cost: 0 };
    this.units.set(path, unit);
    this.#turnsOf(path).push(unit);
  }

  /** The turns of the step that a unit belongs to. @param {string} path */
  #turnsOf(path) {
    const step = stepOf(path);
    this.shape += 1;
    const turns = this.turns.get(step) ?? [];
    this.turns.set(step, turns);
    return turns;
  }

  /** @param {Row} row */
  #unit(row) {
    const [seq, atMs, , path] = row;
    const node = this.#node(stepOf(path));
    const turns = this.#turnsOf(path);
    const known = turns.find((unit) => unit.path === path);
    if (known) Object.assign(known, { done: true, seq, atMs, tokens: row[6], cost: row[7], note: row[9] || known.note });
    else turns.push({ path, name: row[10] || last(path), note: row[9], done: true, seq, askedSeq: 0, atMs, tokens: row[6], cost: row[7] });
    this.units.delete(path);
    this.#spend(node, row[6], row[7]);
  }

  /** @param {Row} row */
  #pause(row) {
    const node = this.#node(stepOf(row[3]));
    this.#tell(node, row);
    this.units.delete(row[3]);
    node.note = row[9];
    this.questions.set(node.path, row[9]);
    this.#count(node, row[6], row[7]);
    this.#restate(node, "waiting");
  }

  /** @param {string} path */
  #answer(path) {
    const node = this.#node(stepOf(path));
    this.questions.delete(node.path);
    this.#restate(node, "running");
  }

  /** @param {Row} row */
  #end(row) {
    if (row[3] !== "") return;
    this.status = row[4] || "aborted";
    this.feedback = row[9];
    if (this.status === "paused") return;
    this.#cutShort(this.root);
    this.questions.clear();
    this.units.clear();
  }

  /** Whatever is open inside a step is over, at any depth. @param {Node} node */
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

  /** @param {Node} node */
  #openIn(node) {
    const paths = [...node.running];
    if (node.waiting) paths.push(...node.children.filter((path) => this.nodes.get(path)?.status === "waiting"));
    return paths.map((path) => /** @type {Node} */ (this.nodes.get(path)));
  }

  /** @param {Node} node @param {string} status */
  #restate(node, status) {
    if (node.path === "") return;
    const parent = /** @type {Node} */ (this.nodes.get(parentOf(node.path)));
    parent.running.delete(node.path);
    if (node.status === "success") parent.done -= 1;
    else if (node.status === "failure") parent.failed -= 1;
    else if (node.status === "waiting") parent.waiting -= 1;
    node.group[/** @type {"running"} */ (node.status)] -= 1;
    node.group[/** @type {"running"} */ (status)] += 1;
    node.status = status;
    if (status === "running") parent.running.add(node.path);
    else if (status === "success") parent.done += 1;
    else if (status === "failure") parent.failed += 1;
    else if (status === "waiting") parent.waiting += 1;
  }

  /** What a step has used by now, all in all: what is new of it is counted. */
  #count(/** @type {Node} */ node, /** @type {number} */ tokens, /** @type {number} */ cost) {
    this.#spend(node, tokens - node.countedTokens, cost - node.countedCost);
  }

  #spend(/** @type {Node} */ node, /** @type {number} */ tokens, /** @type {number} */ cost) {
    if (!tokens && !cost) return;
    for (let path = node.path; ; path = parentOf(path)) {
      const each = /** @type {Node} */ (this.nodes.get(path));
      each.countedTokens += tokens;
      each.countedCost += cost;
      each.group.tokens += tokens;
      each.group.cost += cost;
      if (path === "") return;
    }
  }
}

/** The outline after these rows, up to a seq. @param {Row[]} rows @param {number} [upTo] */
export function folded(rows, upTo = Infinity) {
  const outline = new Outline();
  for (const row of rows) {
    if (row[0] > upTo) break;
    outline.take(row);
  }
  return outline;
}
