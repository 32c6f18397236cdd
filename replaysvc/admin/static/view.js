// A page as data: `h` describes elements, `render` brings a part of the document to that description.
//
// What is there already is changed in place, so focus, selection, scroll and charts outlive each refresh. Text reaches the
// document as text nodes alone and there is no way to give HTML: names of actors, columns and metadata are the writers'.

const TEXT = "#text";
const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "indeterminate", "open", "max", "min"]);
const OWN = new Set(["key", "hook", "arg"]);

// Returns a description of one element; null, false and true among the children are left out.
// props: attributes; `on...`: listeners; `key`: who this is among its siblings; `hook` {mount, update, unmount}: code that
// owns what is inside the element and is given `arg`.
export function h(tag, props, ...children) {
  return { tag, props: props ?? {}, children: flat(children, []), key: props?.key };
}

function flat(children, out) {
  for (const child of children) {
    if (child === null || child === undefined || typeof child === "boolean") continue;
    if (Array.isArray(child)) flat(child, out);
    else if (typeof child === "object") out.push(child);
    else out.push({ tag: TEXT, text: String(child), props: {}, children: [] });
  }
  return out;
}

let mounted = [];

// Makes the children of `parent` what the descriptions say.
export function render(parent, ...children) {
  patchChildren(parent, flat(children, []));
  const hooks = mounted;
  mounted = [];
  for (const { node, told } of hooks) if (node.isConnected) node.hookState = told.props.hook.mount(node, told.props.arg);
}

function patchChildren(parent, wanted) {
  if (!parent.told) parent.replaceChildren();
  const before = parent.told ?? [];
  const keyed = new Map();
  const others = [];
  for (const one of before) {
    if (one.told.key !== undefined) keyed.set(one.told.key, one);
    else others.push(one);
  }
  const after = [];
  let next = 0;
  for (const told of wanted) {
    let one;
    if (told.key !== undefined) {
      one = keyed.get(told.key);
      if (one && one.told.tag === told.tag && one.told.props.hook === told.props.hook) keyed.delete(told.key);
      else one = undefined;
    } else if (next < others.length && fits(others[next].told, told)) {
      one = others[next++];
    } else {
      const found = others.findIndex((other, i) => i >= next && fits(other.told, told));
      if (found >= 0) {
        for (; next < found; next++) drop(others[next]);
        one = others[next++];
      }
    }
    if (one) patch(one.node, one.told, told);
    after.push({ told, node: one ? one.node : create(told) });
  }
  for (; next < others.length; next++) drop(others[next]);
  for (const one of keyed.values()) drop(one);
  after.forEach(({ node }, i) => {
    if (parent.childNodes[i] !== node) parent.insertBefore(node, parent.childNodes[i] ?? null);
  });
  parent.told = after;
}

function fits(old, told) {
  return old.tag === told.tag && old.key === told.key && old.props.hook === told.props.hook;
}

function create(told) {
  if (told.tag === TEXT) return document.createTextNode(told.text);
  const node = told.tag.startsWith("svg:")
    ? document.createElementNS(SVG, told.tag.slice(4))
    : document.createElement(told.tag);
  patch(node, { props: {}, children: [] }, told);
  if (told.props.hook) mounted.push({ node, told });
  return node;
}

function patch(node, old, told) {
  if (told.tag === TEXT) {
    if (old.text !== told.text) node.data = told.text;
    return;
  }
  if (!told.props.hook) patchChildren(node, told.children);
  for (const name of Object.keys(old.props)) if (!(name in told.props)) setProp(node, name, undefined);
  for (const [name, value] of Object.entries(told.props)) if (old.props[name] !== value) setProp(node, name, value);
  if (told.props.hook && old.props.hook) told.props.hook.update?.(node, told.props.arg, node.hookState);
}

function setProp(node, name, value) {
  if (OWN.has(name)) return;
  if (name.startsWith("on")) {
    const type = name.slice(2);
    node.listening ??= {};
    if (!(type in node.listening)) node.addEventListener(type, (event) => node.listening[type]?.(event));
    node.listening[type] = value;
  } else if (PROPERTIES.has(name) && !(node instanceof SVGElement)) {
    if (node[name] !== value) node[name] = value ?? (typeof node[name] === "boolean" ? false : "");
  } else if (value === undefined || value === null || value === false) {
    node.removeAttribute(name);
  } else {
    node.setAttribute(name, value === true ? "" : String(value));
  }
}

function drop({ node }) {
  forget(node);
  node.remove();
}

function forget(node) {
  for (const child of node.told ?? []) forget(child.node);
  if (node.hookState !== undefined) {
    node.hookState.unmount?.();
    node.hookState = undefined;
  }
}
