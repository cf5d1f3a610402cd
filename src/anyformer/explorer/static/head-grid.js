// The attention map of each head of a layer over the input, with a button that ablates the head.

import { part } from "./api.js";
import { el, number } from "./dom.js";
import { figure } from "./draw.js";
import * as inputMap from "./input-map.js";
import { rowsOf } from "./view-heads.js";

export function maxOutput(value) { return el("output", { class: "max" }, `max: ${number(value, 4)}`); }

export const maximum = (values) => values.reduce((top, value) => Math.max(top, value), 0);

// A tensor as nested lists.
export function nested(tensor) {
  if (tensor.shape.length === 2) return rowsOf(tensor);
  return tensor.shape.length < 2 ? [...tensor.values] : [...Array(tensor.shape[0]).keys()].map((i) => nested(part(tensor, i)));
}

export function headGrid(context, got, attention, layer, maps, options) {
  const block = attention.blocks[attention.layers.indexOf(layer)];
  const heads = el("div", { class: "grid" });
  const wide = got.kind === "clip" || got.kind === "audio" ? "22rem" : "9rem";
  heads.style.gridTemplateColumns = `repeat(auto-fill, minmax(${wide}, 1fr))`;
  for (let head = 0; head < maps.shape[0]; head++) {
    const one = part(maps, head);
    const off = context.isAblated(attention.stage, block, attention.part, head);
    const small = { mark: options.mark, axes: options.axes, wide: got.kind === "clip" ? 52 : got.kind === "audio" ? 320 : 140 };
    const ablate = attention.plain ? el("button", { type: "button", class: "ablate", "aria-pressed": String(off), title: "Ablate this head", onclick: () => context.toggleAblation(attention.stage, block, attention.part, head) }, off ? "off" : "on") : "";
    heads.append(el("div", { class: off ? "cell ablated" : "cell", "data-head": `${layer}.${head}` }, inputMap.draw(got, one, `head ${head}`, small),
      el("div", {}, el("b", {}, `head ${head}`), el("span", { class: "top" }, `max ${number(maximum(one.values), 3)}`), ablate)));
  }
  return figure("Each head of this layer", heads, nested(maps));
}
