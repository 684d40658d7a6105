// Describes elements, and brings the document to that description: only what differs is touched, so that scroll
// position, selection and focus survive an update. Data becomes text nodes and attribute values and is never parsed as
// HTML.

const SVG = "http://www.w3.org/2000/svg";
// The description that a node was last brought to, and the listeners of an element by type.
const described = new WeakMap();
const listeners = new WeakMap();
const PROPERTIES = new Set(["value", "checked", "disabled", "open", "selected", "hidden"]);

/** What an element shall be. Only `h` makes one: an object of the same form that comes as data is text. */
class Described {
  constructor(tag, props, children) {
    this.tag = tag;
    this.props = props;
    this.children = children;
  }
}

/** An element. `key` tells siblings apart; `onclick: fn` listens; `vars: {"--x": "3%"}` sets CSS variables. */
export function h(tag, props, ...children) {
  return new Described(tag, props ?? {}, flat(children));
}

/** Brings the children of `parent` to what is described; a Node among them is put in as it is. */
export function render(parent, ...children) {
  const focused = document.activeElement;
  patch(parent, flat(children));
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
}

/** Whether something may be put into the page as it is. */
export function isNode(value) {
  return value instanceof Described || value instanceof Node;
}

function flat(children, into = []) {
  for (const child of children) {
    if (Array.isArray(child)) flat(child, into);
    else if (child !== null && child !== undefined && child !== "" && typeof child !== "boolean")
      into.push(isNode(child) ? child : typeof child === "object" ? JSON.stringify(child) : String(child));
  }
  return into;
}

function patch(parent, wanted) {
  const free = new Map();
  for (const node of parent.childNodes) {
    const slot = slotOfNode(node);
    if (free.has(slot)) free.get(slot).push(node);
    else free.set(slot, [node]);
  }
  for (const nodes of free.values()) nodes.reverse();
  const nodes = wanted.map((one) => {
    const node = free.get(slotOf(one))?.pop();
    return node === undefined ? create(one, parent) : update(node, one);
  });
  for (const rest of free.values()) for (const node of rest) node.remove();
  let at = parent.firstChild;
  for (const node of nodes) {
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
}

function slotOf(one) {
  if (typeof one === "string") return "#text";
  if (one instanceof Node) return one;
  return one.props.key === undefined ? one.tag : `${one.tag} ${one.props.key}`;
}

function slotOfNode(node) {
  if (node.nodeType === Node.TEXT_NODE) return "#text";
  const one = described.get(node);
  return one === undefined ? node : slotOf(one);
}

function create(one, parent) {
  if (typeof one === "string") return document.createTextNode(one);
  if (one instanceof Node) return one;
  const isSvg = one.tag === "svg" || (parent.namespaceURI === SVG && parent.localName !== "foreignObject");
  const element = isSvg ? document.createElementNS(SVG, one.tag) : document.createElement(one.tag);
  return update(element, one);
}

function update(node, one) {
  if (typeof one === "string") {
    if (node.data !== one) node.data = one;
    return node;
  }
  const before = described.get(node);
  if (one instanceof Node || before === one) return node;
  described.set(node, one);
  patch(node, one.children);
  // After the children: a select has its value only once it has its options.
  setProps(node, before?.props ?? {}, one.props);
  return node;
}

function setProps(element, before, now) {
  for (const name of Object.keys(before)) if (!(name in now)) setProp(element, name, undefined);
  for (const [name, value] of Object.entries(now)) if (before[name] !== value) setProp(element, name, value);
}

function setProp(element, name, value) {
  if (name === "key") return;
  if (name.startsWith("on")) listen(element, name.slice(2), value);
  else if (name === "vars") setVariables(element, value ?? {});
  else if (PROPERTIES.has(name)) {
    if (element[name] !== (value ?? "")) element[name] = value ?? "";
  } else if (value === undefined || value === null || value === false) element.removeAttribute(name);
  else {
    const text = value === true ? "" : String(value);
    if (element.getAttribute(name) !== text) element.setAttribute(name, text);
  }
}

function setVariables(element, variables) {
  for (const [name, value] of Object.entries(variables))
    if (element.style.getPropertyValue(name) !== value) element.style.setProperty(name, value);
}

function listen(element, type, listener) {
  const known = listeners.get(element) ?? {};
  if (!(type in known)) element.addEventListener(type, (event) => listeners.get(element)[type]?.(event));
  listeners.set(element, { ...known, [type]: listener });
}
