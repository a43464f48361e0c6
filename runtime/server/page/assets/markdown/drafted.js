// Which characters of a drawn block were drafted. Marks count characters of the source; what is drawn lacks its syntax.

import { h } from "../dom.js";
import { cutByMarks, hueOf } from "../marks.js";

// How far from the last word the next one may stand: a longer way than the longest usual address.
const NEAR = 2000;

/** Colours the drafted text in `element`, which was drawn from `source`, which stands at `at` in the answer. */
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
    // A line with escapes or entities stands otherwise in the source, so its words are looked for; some stay plain.
    const parts = node.data.split(/(\n)/).map((line) => draw(line) ?? line.split(/(?<= )/).map((word) => draw(word) ?? word));
    node.replaceWith(...parts.flat(2));
  }
}

function piece(text, source) {
  // A token's space stands before its word; colouring it would only blur where words begin.
  const word = text.trimStart();
  if (source === null || !word) return [text];
  const drafted = h("span", { class: "drafted", "data-hue": String(hueOf(source)) }, word);
  return [text.slice(0, text.length - word.length), drafted];
}
