// Each head of a layer with what it looks at in the input, and a button that silences it.

import { part } from "./api.js";
import { el, number } from "./dom.js";
import { figure } from "./draw.js";
import * as surface from "./surface.js";
import { rowsOf } from "./view-heads.js";

export function most(value) { return el("output", { class: "most" }, `the most: ${number(value, 4)}`); }

export const peak = (values) => values.reduce((top, value) => Math.max(top, value), 0);

// Nested lists of any depth.
export function nested(tensor) {
  if (tensor.shape.length === 2) return rowsOf(tensor);
  return tensor.shape.length < 2 ? [...tensor.values] : [...Array(tensor.shape[0]).keys()].map((i) => nested(part(tensor, i)));
}

export function headGrid(context, got, asker, layer, maps, options) {
  const block = asker.blocks[asker.layers.indexOf(layer)];
  const heads = el("div", { class: "grid" });
  const wide = got.kind === "clip" || got.kind === "sound" ? "22rem" : "9rem";
  heads.style.gridTemplateColumns = `repeat(auto-fill, minmax(${wide}, 1fr))`;
  for (let head = 0; head < maps.shape[0]; head++) {
    const one = part(maps, head);
    const off = context.isMuted(asker.stage, block, asker.part, head);
    const small = { mark: options.mark, axes: options.axes, wide: got.kind === "clip" ? 52 : got.kind === "sound" ? 320 : 140 };
    const mute = asker.plain ? el("button", { type: "button", class: "mute", "aria-pressed": String(off), title: "Silence this head", onclick: () => context.toggleMute(asker.stage, block, asker.part, head) }, off ? "off" : "on") : "";
    heads.append(el("div", { class: off ? "cell muted" : "cell", "data-head": `${layer}.${head}` }, surface.draw(got, one, `head ${head}`, small),
      el("div", {}, el("b", {}, `head ${head}`), el("span", { class: "top" }, `most ${number(peak(one.values), 3)}`), mute)));
  }
  return figure("Each head of this layer", heads, nested(maps));
}
