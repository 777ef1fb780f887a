// @ts-check
// Numbers, times and texts of strangers, for people.

/** @param {number | null | undefined} ms */
export function duration(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "";
  if (ms < 1) return "<1 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  const seconds = Math.round(ms / 1000);
  const [h, m, s] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
  return `${String(h).padStart(2, "0")}:${String(m).padStart(2, "0")}:${String(s).padStart(2, "0")}`;
}

const whole = new Intl.NumberFormat("en-US");

/** @param {number} number */
export const count = (number) => whole.format(number);

/** @param {number} tokens */
export const tokens = (tokens) => (tokens ? `${count(tokens)} tok` : "");

/** @param {number} dollars */
export function dollars(dollars) {
  if (!dollars) return "";
  return `${dollars >= 0.01 ? dollars.toFixed(2) : dollars.toPrecision(2)} $`;
}

/** @param {number | null} ms */
export function moment(ms) {
  if (ms === null) return "";
  const at = new Date(ms);
  const pad = (/** @type {number} */ n) => String(n).padStart(2, "0");
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  return `${day} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

// What would move the cursor, hide itself or turn the reading order is shown as an escape.
// eslint-disable-next-line no-control-regex
const UNSAFE = /(?![\t\n])[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029\ufeff\ufff9-\ufffb]/g;

/** Text of strangers, with its lines as they are. @param {string} text */
export function safe(text) {
  return text.replaceAll("\r\n", "\n").replace(UNSAFE, (mark) => {
    const code = mark.charCodeAt(0);
    return code < 0x100 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/** @param {string} text */
export const oneLine = (text) => safe(text.replace(/\s+/g, " ").trim());

/** A value as a person reads it: a text as it is, anything else as JSON. @param {unknown} value */
export function shown(value) {
  if (value === undefined) return "";
  return safe(typeof value === "string" ? value : JSON.stringify(value, null, 2));
}

const MARKS = /** @type {Record<string, string>} */ ({
  running: "…", success: "✓", failure: "✗", waiting: "?", aborted: "⊘", completed: "✓", failed: "✗", paused: "?",
  abandoned: "!",
});

/** @param {string} status */
export const mark = (status) => MARKS[status] ?? "·";
