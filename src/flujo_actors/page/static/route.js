// @ts-check
// Where the reader is: kept behind the `#` of the address, so that a link shows the same, whatever stands before it.

/**
 * @typedef {object} Route
 * @property {string} run which run, "" for the list
 * @property {string} step the path of the chosen step
 * @property {number | null} seq the moment that is shown, null for live
 * @property {string} tab what is shown of the step
 * @property {string} filter failed, running or nothing
 * @property {string} q what is searched
 * @property {string} status of the list
 * @property {string} pipeline of the list
 * @property {string} other the run that it is compared with
 * @property {string} view how a run is drawn: graph, or as a tree
 */

const NAMES = /** @type {const} */ (["run", "step", "tab", "filter", "q", "status", "pipeline", "other", "view"]);

/** @param {string} hash @returns {Route} */
export function routeOf(hash) {
  const said = new URLSearchParams(hash.replace(/^#/, ""));
  const seq = said.get("seq");
  const texts = Object.fromEntries(NAMES.map((name) => [name, said.get(name) ?? ""]));
  return /** @type {Route} */ ({ ...texts, seq: seq === null || !/^\d+$/.test(seq) ? null : Number(seq) });
}

/** @param {Partial<Route>} route */
export function hashOf(route) {
  const said = new URLSearchParams();
  for (const name of NAMES) if (route[name]) said.set(name, /** @type {string} */ (route[name]));
  if (route.seq !== null && route.seq !== undefined) said.set("seq", String(route.seq));
  return `#${said}`;
}
