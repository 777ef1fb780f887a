// @ts-check
// The stream of what happens, with the last seq that was seen: a reader that comes back goes on where it was.

import { address } from "./api.js";

export class Live {
  /** @param {{run?: string, after?: () => number, heard: Record<string, (data: any) => void>, connected: (is: boolean) => void}} options */
  constructor({ run, after, heard, connected }) {
    this.run = run;
    this.after = after ?? (() => 0);
    this.heard = heard;
    this.connected = connected;
    /** @type {EventSource | null} */
    this.source = null;
    this.wait = 0;
    this.ended = false;
    this.onHide = () => (document.hidden ? this.close() : this.open());
    document.addEventListener("visibilitychange", this.onHide);
    this.open();
  }

  open() {
    if (this.source || this.ended) return;
    const source = new EventSource(address("events", { run: this.run, after: this.run === undefined ? undefined : this.after() }));
    this.source = source;
    source.onopen = () => {
      this.wait = 0;
      this.connected(true);
    };
    source.onerror = () => this.#again();
    for (const [name, take] of Object.entries(this.heard)) {
      source.addEventListener(name, (event) => take(JSON.parse(/** @type {MessageEvent} */ (event).data)));
    }
  }

  /** A new connection after a while, from the last seq that was taken: the browser's own would not know of it. */
  #again() {
    this.connected(false);
    this.close();
    this.wait = Math.min(5000, this.wait ? this.wait * 2 : 250);
    if (!this.ended) this.timer = setTimeout(() => this.open(), this.wait);
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  end() {
    this.ended = true;
    this.close();
    document.removeEventListener("visibilitychange", this.onHide);
  }
}
