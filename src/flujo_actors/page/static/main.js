// @ts-check
// The page: what is known, where the reader is, and one drawing per frame. `view = f(state)`; nothing else is drawn.

import { html, nothing, render } from "./vendor/lit-html.js";
import { Refused, get, post } from "./api.js";
import { compareView } from "./compare_view.js";
import { Outline, folded } from "./fold.js";
import { count, safe } from "./format.js";
import { GraphReader } from "./graph_reader.js";
import { keysView, onKey, onTreeKey } from "./keys.js";
import { listView } from "./list_view.js";
import { Live } from "./live.js";
import { hashOf, routeOf } from "./route.js";
import { runView } from "./run_view.js";
import { LINE_PX } from "./tree_view.js";
import { visibleLines } from "./visible.js";

/** @typedef {import("./fold.js").Row} Row */

const PAGE_OF_ROWS = 5000;
const ENDED = new Set(["completed", "failed", "aborted"]);

/** What is known of a run that is looked at. */
function nothingKnown() {
  return {
    /** @type {Row[]} */ rows: [],
    outline: new Outline(),
    /** @type {{seq: number, outline: Outline} | null} */ past: null,
    /** @type {any} */ info: null,
    /** @type {any[]} */ questions: [],
    /** @type {Map<string, string>} */ texts: new Map(),
    /** @type {Map<string, boolean>} */ said: new Map(),
    /** @type {Map<number, any>} */ bodies: new Map(),
    folds: 0,
    all: 0,
    endSeq: 0,
    loaded: false,
  };
}

class App {
  constructor(/** @type {HTMLElement} */ element) {
    this.element = element;
    this.route = routeOf(location.hash);
    this.list = { runs: /** @type {any[]} */ ([]), counts: {}, cursor: null, waiting: 0, loading: true };
    this.run = nothingKnown();
    this.graph = new GraphReader(this);
    /** @type {any} */
    this.compared = null;
    /** @type {Map<string, string>} */
    this.answers = new Map();
    this.scroll = { top: 0, height: window.innerHeight };
    this.connected = true;
    this.readOnly = false;
    this.problem = "";
    this.help = false;
    this.skewMs = 0;
    /** @type {Live | null} */
    this.live = null;
    this.frame = 0;
    this.linesCache = { key: "", lines: /** @type {import("./visible.js").Line[]} */ ([]) };
    this.version = 0;
    this.onScroll = (/** @type {Event} */ e) => this.scrolled(/** @type {HTMLElement} */ (e.currentTarget));
    this.onSearch = (/** @type {any} */ e) => this.go({ q: e.target.value }, { replace: true });
    this.onSlide = (/** @type {any} */ e) => this.slide(Number(e.target.value));
    this.onTreeKey = (/** @type {KeyboardEvent} */ e) => onTreeKey(this, e);
    this.more = () => this.loadList({ more: true });
    this.cancel = () => this.act("cancel", { run: this.route.run, reason: "cancelled from the page" });
    this.resume = () => this.act("resume", { run: this.route.run });
    this.askForOther = () => this.openCompare();
    window.addEventListener("hashchange", () => this.moved());
    window.addEventListener("keydown", (e) => onKey(this, e));
    window.addEventListener("resize", () => this.redraw());
    setInterval(() => this.tick(), 1000);
    this.arrive();
  }

  // --- where the reader is ---

  /** @param {Partial<import("./route.js").Route>} change */
  linkTo(change) {
    const fresh = "run" in change ? { run: "", step: "", tab: "", filter: "", q: "", status: "", pipeline: "", other: "", view: "", seq: null } : this.route;
    return hashOf({ ...fresh, ...change });
  }

  /** @param {Partial<import("./route.js").Route>} change */
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
    if (before.run !== route.run || before.other !== route.other) this.arrive();
    else if (!route.run && (before.q !== route.q || before.status !== route.status)) this.loadList();
    this.redraw();
  }

  arrive() {
    this.live?.end();
    this.live = null;
    this.run = nothingKnown();
    this.graph = new GraphReader(this);
    this.compared = null;
    this.scroll.top = 0;
    if (this.route.run && this.route.other) this.loadCompared();
    else if (this.route.run) this.loadRun();
    else this.loadList().then(() => this.watchList());
    document.title = this.route.run ? `${this.route.run} · runs` : "Runs";
    this.redraw();
  }

  // --- loading ---

  /** Ask, and say so if it cannot be had. @template T @param {() => Promise<T>} ask @returns {Promise<T | undefined>} */
  async try(ask) {
    try {
      return await ask();
    } catch (error) {
      this.problem = error instanceof Refused ? error.message : `The server cannot be reached: ${error}`;
      this.redraw();
      return undefined;
    }
  }

  async loadList({ more = false } = {}) {
    const { q, status, pipeline } = this.route;
    const cursor = more ? this.list.cursor ?? undefined : undefined;
    const told = await this.try(() => get("runs", { q, status, pipeline, cursor, limit: 100 }));
    if (!told || this.route.run || this.route.q !== q || this.route.status !== status) return;
    this.knows(told);
    const runs = more ? [...this.list.runs, ...told.runs] : told.runs;
    this.list = { runs, counts: told.counts, cursor: told.cursor, waiting: told.waiting, loading: false };
    this.redraw();
  }

  watchList() {
    if (this.route.run) return;
    this.live?.end();
    this.live = new Live({ heard: { runs: () => this.loadList() }, connected: (is) => this.isConnected(is) });
  }

  async loadRun() {
    const id = this.route.run;
    const run = this.run;
    const page = (/** @type {number} */ after) => get("records", { run: id, after, limit: PAGE_OF_ROWS });
    const first = await this.try(() => page(0));
    if (!first || this.run !== run) return;
    this.heardPage(first);
    // Records are numbered without gaps, so the pages after the first are known, and asked for together.
    const starts = [];
    for (let after = first.next ?? Infinity; after < first.run.records; after += PAGE_OF_ROWS) starts.push(after);
    const rest = starts.map(page);
    for (const coming of rest) {
      const told = await this.try(() => coming);
      if (!told || this.run !== run) return;
      this.heardPage(told);
    }
    run.loaded = true;
    this.live = new Live({
      run: id,
      after: () => run.all,
      connected: (is) => this.isConnected(is),
      heard: {
        records: (rows) => this.take(rows),
        text: (told) => this.heardText(told),
        run: (told) => this.standing(told),
        end: () => this.live?.end(),
        problem: (told) => this.failed(told.error),
      },
    });
  }

  /** @param {any} told */
  heardPage(told) {
    this.knows(told);
    this.take(told.rows);
    this.standing(told.run);
  }

  async loadCompared() {
    const { run, other } = this.route;
    this.compared = (await this.try(() => get("compare", { a: run, b: other }))) ?? null;
    this.redraw();
  }

  /** @param {any} told */
  knows(told) {
    this.readOnly = told.read_only;
    this.skewMs = told.now_ms - Date.now();
  }

  // --- what happens ---

  /** @param {Row[]} rows */
  take(rows) {
    const { run } = this;
    for (const row of rows) {
      if (row[0] <= run.all) continue;
      run.rows.push(row);
      run.outline.take(row);
      run.all = row[0];
      if (row[2] === "ended") run.endSeq = row[0];
      if (row[2] === "settled") run.texts.delete(row[3]);
    }
    this.version += 1;
    this.redraw();
  }

  /** @param {{path: string, tail: string}} told */
  heardText({ path, tail }) {
    this.run.texts.set(path, tail);
    this.redraw();
  }

  /** @param {any} told */
  standing(told) {
    this.run.info = told;
    this.run.questions = told.questions ?? [];
    this.redraw();
  }

  /** @param {string} problem */
  failed(problem) {
    this.live?.end();
    this.problem = problem;
    this.redraw();
  }

  /** When a question was asked. @param {string} path */
  askedMs(path) {
    for (let i = this.run.rows.length - 1; i >= 0; i -= 1) {
      const row = this.run.rows[i];
      if (row[2] === "paused" && row[3] === path) return row[1];
    }
    return null;
  }

  /** @param {boolean} is */
  isConnected(is) {
    this.connected = is;
    this.redraw();
  }

  // --- what is shown ---

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
    return this.run.info?.status ?? this.run.outline.status;
  }

  lines() {
    const { filter, q } = this.route;
    const outline = this.outline();
    // Without a filter the lines are the same until a step begins, or is folded: what they say is read when they are drawn.
    const changes = filter || q ? this.version : `${outline.shape} ${this.run.folds}`;
    const key = `${changes}\n${this.route.seq}\n${filter}\n${q}\n${this.route.run}`;
    if (this.linesCache.key !== key) this.linesCache = { key, lines: visibleLines(outline, this.run.said, { filter, q }) };
    return this.linesCache.lines;
  }

  foundSteps() {
    const { filter, q } = this.route;
    return filter || q ? `${count(this.lines().filter((line) => !line.folds || !line.open).length)} found` : "";
  }

  /** @param {string} path */
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

  /** @param {any} node */
  whyNothing(node) {
    if (node.status === "waiting") return "It waits for an answer.";
    return node.status === "running" ? "At work." : "It was stopped before it had an outcome.";
  }

  nowMs() {
    return Date.now() + this.skewMs;
  }

  tookMs() {
    const outline = this.outline();
    if (outline.beganMs === null) return null;
    return (this.isLive() && this.status() === "running" ? this.nowMs() : outline.changedMs ?? outline.beganMs) - outline.beganMs;
  }

  /** Whether the stream of what happens is open. */
  listens() {
    return this.live?.source?.readyState === EventSource.OPEN;
  }

  /** @param {string} status */
  canResume(status) {
    return Boolean(this.run.info?.can_resume) && (status === "abandoned" || status === "running" || status === "paused");
  }

  /** The body of a record, asked for when it is first looked at. @param {number} seq */
  body(seq) {
    const { bodies } = this.run;
    if (!bodies.has(seq)) {
      bodies.set(seq, null);
      get("record", { run: this.route.run, seq })
        .then((told) => bodies.set(seq, told), (error) => bodies.set(seq, { problem: error.message }))
        .finally(() => this.redraw());
    }
    return bodies.get(seq);
  }

  notice() {
    return this.problem ? html`<p class="problem" role="alert">${safe(this.problem)}</p>` : nothing;
  }

  // --- what the reader does ---

  /** @param {string} path */
  choose(path) {
    this.go({ step: path === this.route.step ? "" : path });
  }

  /** @param {Event} event @param {string} path */
  toggle(event, path) {
    event.stopPropagation();
    this.fold(path);
  }

  /** Where the reader is, among what can be gone to. */
  at() {
    return this.route.view ? this.graph.where() : this.route.step;
  }

  stops() {
    return this.route.view ? this.graph.stops() : this.lines().map((line) => line.key);
  }

  /** @param {string} key */
  moveTo(key) {
    if (this.route.view) return this.graph.moveTo(key);
    this.go({ step: key }, { replace: true });
    return this.show(key);
  }

  /** @param {string} path @param {boolean} [open] */
  fold(path, open) {
    if (this.route.view) return this.graph.fold(path, open);
    const line = this.lines().find((each) => each.key === path);
    if (!line?.folds) return undefined;
    this.run.said.set(path, open ?? !line.open);
    this.run.folds += 1;
    this.version += 1;
    return this.redraw();
  }

  /** @param {number} seq */
  slide(seq) {
    this.go({ seq: seq >= this.run.all ? null : seq }, { replace: true });
  }

  /** @param {HTMLElement} tree */
  scrolled(tree) {
    this.scroll = { top: tree.scrollTop, height: tree.clientHeight };
    this.redraw();
  }

  /** @param {string} path */
  show(path) {
    const tree = document.getElementById("tree");
    const index = this.lines().findIndex((line) => line.key === path);
    if (!tree || index < 0) return;
    const top = index * LINE_PX;
    if (top < tree.scrollTop) tree.scrollTop = top;
    else if (top + LINE_PX > tree.scrollTop + tree.clientHeight) tree.scrollTop = top + LINE_PX - tree.clientHeight;
  }

  /** @param {string} name @param {unknown} body */
  async act(name, body) {
    const told = await this.try(() => post(name, body));
    if (told !== undefined) this.redraw();
    return told;
  }

  /** @param {number} seq */
  async fork(seq) {
    const told = await this.act("fork", { run: this.route.run, seq });
    if (told) this.go({ run: told.run_id, step: "", seq: null });
  }

  openCompare() {
    const other = window.prompt("Compare with which run? (its id)");
    if (other) this.go({ other });
  }

  /** @param {any} question @param {unknown} answer */
  async answer(question, answer) {
    try {
      await post("answer", { token: question.token, answer });
      this.answers.delete(question.token);
      this.run.questions = this.run.questions.filter((each) => each.token !== question.token);
    } catch (error) {
      this.answers.set(question.token, error instanceof Error ? error.message : String(error));
      if (error instanceof Refused && error.status === 409) {
        this.problem = error.message;
        this.run.questions = this.run.questions.filter((each) => each.token !== question.token);
      }
    }
    this.redraw();
  }

  /** @param {any} question @param {string} problem */
  refuse(question, problem) {
    this.answers.set(question.token, problem);
    this.redraw();
  }

  // --- drawing ---

  /** The clock moves by itself; whatever else moves is drawn because something happened. */
  tick() {
    if (this.route.run && !this.route.other && this.isLive() && !document.hidden && this.status() === "running") this.redraw();
  }

  redraw() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  draw() {
    const view = this.route.other ? compareView(this) : this.route.run ? runView(this) : listView(this);
    render(html`${view}${this.help ? keysView(this) : nothing}`, this.element);
    const tree = document.getElementById("tree");
    if (tree && tree.clientHeight !== this.scroll.height) this.scrolled(tree);
  }
}

const element = /** @type {HTMLElement} */ (document.getElementById("page"));
element.textContent = "";
// For those who look: tests of the page ask it what it knows.
/** @type {any} */ (window).runPage = new App(element);
