// Colours the drafted characters of a rendered block. Marks count characters of the source, whose syntax is not rendered.

import { h } from "../dom.js";
import { cutByMarks, hueOf } from "../marks.js";

// The most characters between two words of the source: more than the longest usual address of a link.
const NEAR = 2000;

/** Colour the drafted text in `element`, which was rendered from `source` at position `at` in the answer. */
export function markDrafted(element, source, at, marks) {
  if (!marks.length) return;
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (walker.nextNode()) if (!walker.currentNode.parentElement.closest("figcaption")) nodes.push(walker.currentNode);
  let place = 0;
  const draw = (text) => {
    const found = text.trim() ? source.slice(place, place + text.length + NEAR).indexOf(text) : -1;
    if (found < 0) return null;
    const from = place + found;
    place = from + text.length;
    return [...cutByMarks(marks, text, at + from)].flatMap(([part, by]) => piece(part, by));
  };
  for (const node of nodes) {
    // A line with escapes or entities differs from its source, so words are searched one by one; some stay uncoloured.
    const parts = node.data.split(/(\n)/).map((line) => draw(line) ?? line.split(/(?<= )/).map((word) => draw(word) ?? word));
    node.replaceWith(...parts.flat(2));
  }
}

function piece(text, source) {
  // A token begins with the space before its word; colouring the space would hide where words begin.
  const word = text.trimStart();
  if (source === null || !word) return [text];
  const drafted = h("span", { class: "drafted", "data-hue": String(hueOf(source)) }, word);
  return [text.slice(0, text.length - word.length), drafted];
}
