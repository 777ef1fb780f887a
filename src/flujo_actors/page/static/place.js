// @ts-check
// Sizes and places that change with every frame. They are set on the element's own style object: a strict policy lets no
// page write them into attributes.

import { Directive, PartType, directive } from "./vendor/directive.js";
import { noChange } from "./vendor/lit-html.js";

class Place extends Directive {
  /** @param {any} part */
  constructor(part) {
    super(part);
    if (part.type !== PartType.ELEMENT) throw new Error("place() belongs on an element");
  }

  /** @param {Record<string, string>} _styles */
  render(_styles) {
    return noChange;
  }

  /** @param {any} part @param {[Record<string, string>]} given */
  update(part, [styles]) {
    for (const [name, value] of Object.entries(styles)) part.element.style.setProperty(name, value);
    return noChange;
  }
}

export const place = directive(Place);
