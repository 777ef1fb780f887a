// @ts-check
// A pipeline as nested boxes: what follows one another goes down, what runs at once or is chosen from stands side by side.
// The body of a map or loop is one box, with counts of all its items or turns, however many there are. Pure.
//
// 1. Boxes are what was declared, begun or not; a step that nobody declared has its box when it is heard of.
// 2. More than CROWD boxes side by side are folded at first, and so is whatever would make more than MOST boxes.
// 3. Of more than PART boxes in one only a part is shown, around what happens; the others are a key away.

import { CROWD, lastName, parentOf } from "./fold.js";

/** @typedef {import("./fold.js").Group} Group */
/** @typedef {import("./fold.js").Outline} Outline */

/**
 * @typedef {object} Box
 * @property {string} path as it is declared: `~i` stands for any item or turn
 * @property {string} kind step, pipeline, map, loop, parallel, branch, …
 * @property {Box[]} inside
 */

/**
 * @typedef {object} Shown
 * @property {Box} box
 * @property {number} level
 * @property {boolean} open
 * @property {Shown[]} inside those in sight
 * @property {number} earlier how many are before them
 * @property {number} later how many are after them
 */

export const PART = 16;
export const MOST = 32;
const ASIDE = /\/~[fceh]\d*$/;
const byNumber = new Intl.Collator("en", { numeric: true });
const ACROSS = new Set(["parallel", "branch", "selection"]);

/** Whether a box helps another when that fails, and is no part of its work. @param {Box} box */
export const isAside = (box) => ASIDE.test(box.path);

/** Whether what is inside runs at once, or one of it is chosen. @param {Box} box */
export const isAcross = (box) => ACROSS.has(box.kind);

/** The boxes of a run. @param {[path: string, kind: string][]} declared @param {Outline} outline @returns {Box} */
export function boxesOf(declared, outline) {
  /** @type {Map<string, Box>} */
  const boxes = new Map([["", { path: "", kind: "pipeline", inside: [] }]]);
  const box = (/** @type {string} */ path, /** @type {string} */ kind) => {
    const made = { path, kind, inside: [] };
    boxes.set(path, made);
    const around = parentOf(path);
    (boxes.get(around) ?? box(around, "step")).inside.push(made);
    return made;
  };
  for (const [path, kind] of declared) if (!boxes.has(path)) box(path, kind);
  for (const path of outline.groups.keys()) if (!boxes.has(path)) box(path, kindOf(outline, path));
  return /** @type {Box} */ (boxes.get(""));
}

/** What a step that nobody declared seems to be. @param {Outline} outline @param {string} path */
function kindOf(outline, path) {
  const last = outline.groups.get(path)?.last;
  return last && outline.nodes.get(last)?.of ? "parallel" : "step";
}

/** What is drawn inside: the steps of an item or turn stand in the box of the map or loop itself. @param {Box} box @returns {Box[]} */
export function insideOf(box) {
  return box.inside.flatMap((each) => (each.path.endsWith("/~i") && each.kind === "pipeline" ? each.inside : [each]));
}

/**
 * What is in sight of a graph, in the order in which it is read.
 * @param {Box} root @param {Outline} outline @param {Map<string, boolean>} said what the reader opened and closed
 * @param {Map<string, number>} from where the reader wants the part of a box to begin
 */
export function inSight(root, outline, said, from) {
  const whole = shown(root, 0);
  let drawn = 0;
  for (const pending = [whole]; pending.length; ) {
    const next = /** @type {Shown} */ (pending.shift());
    const inside = insideOf(next.box);
    const few = !isAcross(next.box) || inside.length <= CROWD;
    const fits = drawn + Math.min(inside.length, PART) <= MOST;
    next.open = inside.length > 0 && (next === whole || (said.get(next.box.path) ?? (few && fits)));
    if (!next.open) continue;
    const first = from.get(next.box.path) ?? whereItHappens(inside, outline);
    next.earlier = Math.max(0, Math.min(first, inside.length - PART));
    next.inside = inside.slice(next.earlier, next.earlier + PART).map((each) => shown(each, next.level + 1));
    next.later = inside.length - next.earlier - next.inside.length;
    drawn += next.inside.length;
    pending.push(...next.inside);
  }
  return whole;
}

/** @param {Box} box @param {number} level @returns {Shown} */
function shown(box, level) {
  return { box, level, open: false, inside: [], earlier: 0, later: 0 };
}

/** Where the part of many boxes begins: a little before the first that is not done. @param {Box[]} boxes @param {Outline} outline */
function whereItHappens(boxes, outline) {
  if (boxes.length <= PART) return 0;
  const at = boxes.findIndex(({ path }) => statusOf(outline.groups.get(path)) !== "success");
  return at < 0 ? 0 : Math.max(0, at - 2);
}

/** What can be gone to, in the order in which it is read: boxes, and the ways to those that are not shown. @param {Shown} whole @returns {string[]} */
export function stopsOf(whole) {
  return [
    ...(whole.earlier ? [earlierKey(whole)] : []),
    ...whole.inside.flatMap((each) => [each.box.path, ...stopsOf(each)]),
    ...(whole.later ? [laterKey(whole)] : []),
  ];
}

// A NUL stands in no path.
export const earlierKey = (/** @type {Shown} */ { box }) => `${box.path}\0earlier`;
export const laterKey = (/** @type {Shown} */ { box }) => `${box.path}\0later`;

/** How the steps of one declaration stand, all in all. @param {Group | undefined} group */
export function statusOf(group) {
  if (!group) return "pending";
  if (group.waiting) return "waiting";
  if (group.running) return "running";
  if (group.failure) return "failure";
  return group.success ? "success" : "aborted";
}

/** Whether a box is wanted, or has something wanted inside. @param {Box} box @param {Outline} outline @param {{filter: string, q: string}} wanted @returns {boolean} */
export function isWanted(box, outline, { filter, q }) {
  const group = outline.groups.get(box.path);
  const counted = { failed: group?.failure, running: group?.running, waiting: group?.waiting }[filter];
  const named = `${group?.name ?? lastName(box.path)}\n${box.path}`.toLowerCase().includes(q.toLowerCase());
  if ((!filter || counted) && named) return true;
  return box.inside.some((each) => isWanted(each, outline, { filter, q }));
}

/** The steps behind a box that somebody would look at first: those that failed, wait or run, then others. @param {Outline} outline @param {string} path @param {number} most */
export function stepsOf(outline, path, most) {
  /** @type {Record<string, import("./fold.js").Node[]>} */
  const found = { failure: [], waiting: [], running: [], aborted: [], success: [] };
  for (const node of outline.nodes.values()) {
    if (node.path && node.group.path === path && found[node.status].length < most) found[node.status].push(node);
  }
  return Object.values(found).flatMap((nodes) => nodes.sort((a, b) => byNumber.compare(a.path, b.path))).slice(0, most);
}
