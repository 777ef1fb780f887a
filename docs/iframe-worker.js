// A page that is read from a file may start no worker. The docs site's search runs its worker in a frame there, so that
// the site works from a folder as it does from a server. Messages are copied, as between threads: the search changes the
// queries that it receives, and the input would lose its text.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(/** @type {string | URL} */ url) {
      /** @type {((event: MessageEvent) => void) | null} */
      this.onmessage = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = /** @type {any} */ (this.frame.contentWindow);
      inside.postMessage = (/** @type {unknown} */ data) => {
        const copied = structuredClone(data);
        setTimeout(() => this.onmessage?.(new MessageEvent("message", { data: copied })));
      };
      const script = inside.document.createElement("script");
      this.ready = new Promise((loaded) => script.addEventListener("load", loaded));
      script.src = String(url);
      inside.document.body.append(script);
    }

    postMessage(/** @type {unknown} */ data) {
      const copied = structuredClone(data);
      this.ready.then(() => this.frame.contentWindow?.dispatchEvent(new MessageEvent("message", { data: copied })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
