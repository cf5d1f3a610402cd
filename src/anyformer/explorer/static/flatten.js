// Convert an HTML layout (text, small charts, backgrounds) to one SVG that can be downloaded.

import { svg } from "./dom.js";

export function flatten(root) {
  const frame = root.getBoundingClientRect();
  const width = Math.ceil(Math.max(root.scrollWidth, frame.width)), height = Math.ceil(Math.max(root.scrollHeight, frame.height));
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "font-family": "system-ui, DejaVu Sans, sans-serif" });
  const place = (box) => ({ x: box.left - frame.left, y: box.top - frame.top, width: box.width, height: box.height });
  const visit = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return textNode(node, drawing, frame);
    if (node.nodeType !== Node.ELEMENT_NODE) return;
    const box = place(node.getBoundingClientRect());
    if (node instanceof HTMLCanvasElement) return drawing.append(svg("image", { ...box, href: node.toDataURL("image/png"), preserveAspectRatio: "none", "image-rendering": "pixelated" }));
    if (node instanceof SVGElement) return drawing.append(nested(node, box));
    const style = getComputedStyle(node);
    const seen = style.backgroundColor !== "rgba(0, 0, 0, 0)" || style.borderTopWidth !== "0px";
    if (seen && node !== root) drawing.append(svg("rect", { ...box, rx: parseFloat(style.borderTopLeftRadius) || 0, fill: style.backgroundColor, stroke: style.borderTopWidth === "0px" ? "none" : style.borderTopColor }));
    node.childNodes.forEach(visit);
  };
  visit(root);
  return drawing;
}

function textNode(node, drawing, frame) {
  const text = node.textContent;
  if (!text.trim()) return;
  const range = document.createRange();
  range.selectNodeContents(node);
  const box = range.getBoundingClientRect();
  if (!box.width) return;
  const style = getComputedStyle(node.parentElement);
  drawing.append(svg("text", { x: box.left - frame.left, y: box.bottom - frame.top - 0.25 * box.height, "font-size": style.fontSize, "font-weight": style.fontWeight, fill: style.color, "xml:space": "preserve" }, text));
}

function nested(node, box) {
  const copy = node.cloneNode(true);
  for (const [name, value] of Object.entries(box)) copy.setAttribute(name, value);
  return copy;
}
