// Builds elements. Text is never parsed as HTML; only markdown/render.js creates elements from markup, through DOMPurify.

const SVG = "http://www.w3.org/2000/svg";

/** Return an element. Properties that begin with "on" are listeners; `null`, `undefined` and `false` leave out a property. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Return one of the page's icons, hidden from screen readers. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

export function byId(id) {
  return document.getElementById(id);
}

/**
 * Change `old` to look like `made`, and keep as many of its nodes as possible, so that nothing flickers, and selection
 * and scrolling stay. The first `kept` children are not changed.
 */
export function morph(old, made, kept = 0) {
  const before = [...old.childNodes].slice(kept);
  const after = [...made.childNodes];
  after.forEach((child, place) => {
    const there = before[place];
    if (!there) old.append(child);
    else if (!isAlike(there, child)) there.replaceWith(child);
    else if (there.nodeType === Node.TEXT_NODE) retext(there, child.data);
    else {
      reattribute(there, child);
      morph(there, child);
    }
  });
  before.slice(after.length).forEach((child) => child.remove());
}

function isAlike(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName;
}

function retext(node, text) {
  // If text only grows, the selection stays.
  if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else if (node.data !== text) node.data = text;
}

function reattribute(old, made) {
  for (const { name } of [...old.attributes]) if (!made.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of made.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
}
