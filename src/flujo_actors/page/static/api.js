// @ts-check
// What the server is asked. All addresses are relative, so that any mount and any proxy will do.

export class Refused extends Error {
  /** @param {number} status @param {any} told */
  constructor(status, told) {
    super(told?.error ?? `the server answered ${status}`);
    this.status = status;
    this.told = told;
  }
}

/** @param {string} name @param {Record<string, string | number | undefined>} [query] */
export function address(name, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const parameters = new URLSearchParams(given.map(([key, value]) => [key, String(value)]));
  return given.length ? `api/${name}?${parameters}` : `api/${name}`;
}

/** @param {Response} response */
async function read(response) {
  const told = response.status === 204 ? null : await response.json().catch(() => null);
  if (!response.ok) throw new Refused(response.status, told);
  return told;
}

/** @param {string} name @param {Record<string, string | number | undefined>} [query] */
export async function get(name, query) {
  return read(await fetch(address(name, query), { headers: { accept: "application/json" } }));
}

/** @param {string} name @param {unknown} body */
export async function post(name, body) {
  const headers = { "content-type": "application/json" };
  return read(await fetch(address(name), { method: "POST", headers, body: JSON.stringify(body) }));
}
