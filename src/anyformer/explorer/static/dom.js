// Helpers that create elements. Text is inserted as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

export function el(tag, attributes, ...children) { return fill(document.createElement(tag), attributes, children); }
export function svg(tag, attributes, ...children) { return fill(document.createElementNS(SVG, tag), attributes, children); }

// A token's text with visible whitespace.
export function visible(text) {
  if (text === "") return "∅";
  if (/^\s+$/.test(text)) return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣");
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").trim();
}

export function short(text, max = 16) {
  const seen = visible(text);
  return seen.length > max ? seen.slice(0, max - 1) + "…" : seen;
}

export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value !== 0 && Math.abs(value) < 10 ** -digits) return value.toExponential(1);
  return value.toFixed(digits);
}

export function count(value) { return Math.round(value).toLocaleString("en"); }

export function bytes(value) {
  const units = ["B", "KB", "MB", "GB"];
  let n = 0;
  while (value >= 1024 && n < 3) { value /= 1024; n++; }
  return `${value.toFixed(n ? 1 : 0)} ${units[n]}`;
}

export function choice(label, id, options, value, change) {
  const select = el("select", { id, onchange: () => change(select.value) },
    options.map(([name, text]) => el("option", { value: name }, text)));
  select.value = value;
  return el("label", { for: id }, label, select);
}

// A slider that calls `change` while it moves; `show` formats its value.
export function slider(label, id, { min, max, step, value, show = (x) => x }, change) {
  const output = el("span", {}, show(value));
  const input = el("input", { id, type: "range", min, max, step, value });
  input.value = value;
  input.addEventListener("input", () => { output.textContent = show(Number(input.value)); change(Number(input.value)); });
  return el("label", { for: id }, label, input, output);
}

export function table(heads, rows) {
  const numeric = (i) => rows.length && typeof rows[0][i] === "object" ? {} : { class: /^[-\d.,–e×]+( |$)/.test(String(rows[0]?.[i])) ? "n" : "" };
  return el("table", {},
    el("thead", {}, el("tr", {}, heads.map((name, i) => el("th", numeric(i), name)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((value, i) => el("td", numeric(i), value))))));
}
