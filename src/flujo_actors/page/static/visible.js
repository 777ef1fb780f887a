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
  const kept = wanted.filter || wanted.q ? matching(outline, wanted) : null;
  /** @type {Line[]} */
  const lines = [];
  // What is left to go through, level by level: a tree may be deeper than calls can be.
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
    const open = folds && (kept ? true : isOpen(node, said));
    lines.push(lineOf(node, level, folds, open));
    if (!open) continue;
    if (!kept && turns) for (const unit of turns) lines.push({ key: unit.path, level: level + 1, node, unit, folds: false, open: false });
    if (node.children.length) pending.push({ children: inOrder(node), next: 0 });
  }
  return lines;
}

// Tens of thousands of lines are told anew whenever a step begins: those that are as they were are kept.
/** @type {WeakMap<Node, Line>} */
const known = new WeakMap();

/** @param {Node} node @param {number} level @param {boolean} folds @param {boolean} open @returns {Line} */
function lineOf(node, level, folds, open) {
  const before = known.get(node);
  if (before && before.level === level && before.folds === folds && before.open === open) return before;
  const line = { key: node.path, level, node, unit: null, folds, open };
  known.set(node, line);
  return line;
}

/** @type {WeakMap<Node, Node[]>} */
const ordered = new WeakMap();

/** Items by their number, whenever they began; other steps as they came. @param {Node} node */
function inOrder(node) {
  if (!isCrowd(node)) return node.inside;
  const before = ordered.get(node);
  if (before?.length === node.inside.length) return before;
  const number = (/** @type {string} */ path) => Number(/\/~i(\d+)$/.exec(path)?.[1] ?? Infinity);
  const numbers = node.inside.map((each) => /** @type {[number, Node]} */ ([number(each.path), each]));
  const now = numbers.sort((a, b) => a[0] - b[0]).map(([, each]) => each);
  ordered.set(node, now);
  return now;
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
