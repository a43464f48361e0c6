// Shows an answer in Markdown; while it grows, only changed blocks are rendered again.

import { h, morph } from "../dom.js";
import { markDrafted } from "./drafted.js";
import { blocksOf, elementOf } from "./render.js";

// Characters that may begin a list, a heading or a fence, depending on the rest of the line.
const UNDECIDED = /(?:^|\n)[ \t]*(?:[-*+#>|`~_=:]+|\d{1,9}[.)]?)[ \t]*$/;

export class MarkdownView {
  constructor(element) {
    this.element = element;
    this.settled = 0;
    this.start = 0;
    this.text = "";
  }

  /** Show a text with its marks. `isOpen`: more text will come, so unclosed emphasis and code are rendered as closed. */
  show(text, marks, isOpen = false) {
    if (!text.startsWith(this.text) || !isOpen) this.settled = this.start = 0;
    this.text = text;
    const own = (isOpen ? text.replace(UNDECIDED, "") : text).slice(this.start);
    const blocks = blocksOf(own, isOpen);
    const drawn = blocks.map(({ token, from, to }) => {
      const element = elementOf(token);
      markDrafted(element, own.slice(from, to), this.start + from, marks);
      return element;
    });
    morph(this.element, h("div", {}, drawn), this.settled);
    // All but the last two blocks are final: new text may still join the last block to the one before.
    const firm = isOpen ? Math.max(0, blocks.length - 2) : 0;
    if (firm) {
      this.settled += firm;
      this.start += blocks[firm].from;
    }
  }
}
