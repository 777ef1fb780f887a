// @ts-check
// Who reads a graph: what they have opened and closed, which part of many boxes they want, and where they are.

import { get } from "./api.js";
import { declaredPath } from "./fold.js";
import { PART, boxesOf, inSight, stopsOf } from "./graph.js";
import { boxId } from "./graph_view.js";

/** @typedef {import("./graph.js").Box} Box */

export class GraphReader {
  /** @param {any} app */
  constructor(app) {
    this.app = app;
    /** As it was declared; asked for when the graph is first looked at. @type {[string, string][] | null} */
    this.declared = null;
    /** @type {Map<string, boolean>} */
    this.said = new Map();
    /** @type {Map<string, number>} */
    this.from = new Map();
    /** The way to more boxes that the reader stands at, if at one. */
    this.at = "";
    this.changes = 0;
    this.boxes = { of: /** @type {any} */ (null), groups: -1, declared: /** @type {any} */ (null), root: /** @type {Box | null} */ (null) };
    this.seen = { key: "", outline: /** @type {any} */ (null), whole: /** @type {import("./graph.js").Shown | null} */ (null) };
  }

  async load() {
    this.declared = [];
    const told = await this.app.try(() => get("graph", { run: this.app.route.run }));
    this.declared = told?.steps ?? [];
    this.changed();
  }

  root() {
    if (this.declared === null) this.load();
    const outline = this.app.outline();
    const { of, groups, declared, root } = this.boxes;
    if (root && of === outline && groups === outline.groups.size && declared === this.declared) return root;
    const made = boxesOf(this.declared ?? [], outline);
    this.boxes = { of: outline, groups: outline.groups.size, declared: this.declared, root: made };
    return made;
  }

  /** What is drawn. */
  sight() {
    const outline = this.app.outline();
    const key = `${this.app.version}\n${this.changes}`;
    if (!this.seen.whole || this.seen.key !== key || this.seen.outline !== outline) {
      this.seen = { key, outline, whole: inSight(this.root(), outline, this.said, this.from) };
    }
    return /** @type {import("./graph.js").Shown} */ (this.seen.whole);
  }

  stops() {
    return stopsOf(this.sight());
  }

  /** Whether a path is that of a box. @param {string} path */
  has(path) {
    return this.app.outline().groups.has(path) || Boolean(this.declared?.some(([each]) => each === path));
  }

  where() {
    return this.at || declaredPath(this.app.route.step);
  }

  changed() {
    this.changes += 1;
    this.app.redraw();
  }

  /** The step of a box if there is one, else the box itself. @param {string} path */
  stepAt(path) {
    const group = this.app.outline().groups.get(path);
    return group?.seen === 1 ? group.last : path;
  }

  /** @param {string} path */
  choose(path) {
    this.at = "";
    this.app.choose(this.stepAt(path));
  }

  /** @param {string} key */
  moveTo(key) {
    this.at = key.includes("\0") ? key : "";
    if (!this.at) this.app.go({ step: this.stepAt(key) }, { replace: true });
    this.app.redraw();
    requestAnimationFrame(() => document.getElementById(boxId(key))?.scrollIntoView({ block: "nearest" }));
  }

  /** @param {Event} event @param {string} path */
  toggle(event, path) {
    event.stopPropagation();
    this.fold(path);
  }

  /** @param {string} path @param {boolean} [open] */
  fold(path, open) {
    if (path.includes("\0")) {
      if (open !== false) this.turn(path);
      return;
    }
    const box = document.getElementById(boxId(path));
    this.said.set(path, open ?? box?.getAttribute("aria-expanded") !== "true");
    this.changed();
  }

  /** Show the part before or after the one that is shown. @param {string} key */
  turn(key) {
    const [path, way] = key.split("\0");
    const part = shownAt(this.sight(), path);
    if (!part) return;
    this.from.set(path, Math.max(0, part.earlier + (way === "later" ? PART : -PART)));
    this.at = key;
    this.changed();
  }
}

/** @param {import("./graph.js").Shown} whole @param {string} path @returns {import("./graph.js").Shown | null} */
function shownAt(whole, path) {
  if (whole.box.path === path) return whole;
  for (const each of whole.inside) {
    const found = shownAt(each, path);
    if (found) return found;
  }
  return null;
}
