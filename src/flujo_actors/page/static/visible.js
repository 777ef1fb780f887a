// @ts-check
// Which lines of a run are shown: the tree, with what is folded, filtered and searched. Pure.

import { CROWD } from "./fold.js";

/** @typedef {import("./fold.js").Node} Node */
/** @typedef {import("./fold.js").Outline} Outline */
/** @typedef {import("./fold.js").Unit} Unit */

/**
 * @typedef {object} Line
 * @property {string} key
 * @property {number} level
 * @property {Node} node
 * @property {Unit | null} unit
 * @property {boolean} folds whether there is something inside to fold
 * @property {boolean} open
 */

/** A step with more children than can be looked at one by one. @param {Node} node */
export const isCrowd = (node) => Math.max(node.children.length, node.of) > CROWD;

/** Whether a step stands open: as the reader said, or else unless it is a crowd. */
export function isOpen(/** @type {Node} */ node, /** @type {Map<string, boolean>} */ said) {
  return said.get(node.path) ?? !isCrowd(node);
}

/** @param {Outline} outline @param {Map<string, boolean>} said @param {{filter: string, q: string}} wanted */
export function visibleLines(outline, said, wanted) {
  const narrowed = Boolean(wanted.filter || wanted.q);
  const kept = narrowed ? matching(outline, wanted) : null;
  /** @type {Line[]} */
  const lines = [];
  /** @type {[string, number][]} */
  const pending = outline.root.children.map((path) => /** @type {[string, number]} */ ([path, 1])).reverse();
  for (let next = pending.pop(); next; next = pending.pop()) {
    const [path, level] = next;
    const node = /** @type {Node} */ (outline.nodes.get(path));
    if (kept && !kept.has(path)) continue;
    const turns = outline.turns.get(path) ?? [];
    const folds = node.children.length > 0 || turns.length > 0;
    const open = folds && (kept ? true : isOpen(node, said));
    lines.push({ key: path, level, node, unit: null, folds, open });
    if (!open) continue;
    const children = inOrder(node);
    for (let i = children.length - 1; i >= 0; i -= 1) pending.push([children[i], level + 1]);
    if (!kept) for (const unit of turns) lines.push({ key: unit.path, level: level + 1, node, unit, folds: false, open: false });
  }
  return lines;
}

/** Items by their number, whenever they began; other steps as they came. @param {Node} node */
function inOrder(node) {
  if (!isCrowd(node)) return node.children;
  const number = (/** @type {string} */ path) => Number(/\/~i(\d+)$/.exec(path)?.[1] ?? Infinity);
  return node.children.map((path) => /** @type {[number, string]} */ ([number(path), path])).sort((a, b) => a[0] - b[0]).map(([, path]) => path);
}

/** The steps that are wanted, with those around them. @param {Outline} outline @param {{filter: string, q: string}} wanted */
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

/** The counts of a step's children, as one line. @param {Node} node */
export function countsOf(node) {
  const open = node.running.size;
  const toGo = Math.max(0, node.of - node.done - node.failed - node.waiting - open);
  return { done: node.done, failed: node.failed, waiting: node.waiting, running: open, toGo, all: Math.max(node.of, node.children.length) };
}
