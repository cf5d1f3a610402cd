// The attention layers of a model, and the selected layer and head.

import { choice, el } from "./dom.js";

export async function sites(context, wanted) {
  const { sites: all } = await context.ask("sites");
  const fitting = wanted ? all.filter((one) => one.part === wanted) : all;
  const named = fitting.find((one) => nameOf(one) === context.state.site);
  return { all, site: named || fitting[0] };
}

export const nameOf = (site) => `${site.stage}/${site.part}`;
// Layers are counted in forward order. The first layer of a kind need not be 0: a Perceiver starts with cross-attention.
export function layerOf({ state: { layer } }, site) {
  if (site.layers.includes(layer)) return layer;
  return layer < site.layers[0] ? site.layers[0] : site.layers.at(-1);
}
export const blockOf = (site, layer) => site.blocks[site.layers.indexOf(layer)];
export const where = (context, site) => ({ stage: site.stage, part: site.part, layer: layerOf(context, site) });

export function headOf(context, site, mean = true) {
  if (context.state.head === "" && mean) return null;
  return Math.min(Number(context.state.head), site.heads - 1);
}

const numbered = (n) => [...Array(n).keys()].map((i) => [i, i]);

export function controls(context, all, site, { layers = true, heads = true, mean = true } = {}) {
  const { set, n } = context;
  const row = el("div", { class: "controls" });
  const places = all.map((one) => [nameOf(one), `${one.stage} ${one.part}`]);
  const move = (value) => set({ site: value, layer: 0, head: "", pos: -1 });
  if (all.length > 1) row.append(choice("Attention", `site-${n}`, places, nameOf(site), move));
  const numbers = site.layers.map((i) => [i, i]);
  if (layers) row.append(choice("Layer", `layer-${n}`, numbers, layerOf(context, site), (value) => set({ layer: Number(value) })));
  const offered = [...(mean ? [["", "mean of heads"]] : []), ...numbered(site.heads)];
  if (heads) row.append(choice("Head", `head-${n}`, offered, headOf(context, site, mean) ?? "", (value) => set({ head: value })));
  return row;
}

export function ablateButton(context, site, head) {
  if (head === null || !site.plain) return null;
  const { stage, part, layer } = where(context, site);
  const block = blockOf(site, layer), off = context.isAblated(stage, block, part, head);
  const press = () => context.toggleAblation(stage, block, part, head);
  return el("button", { type: "button", id: `ablate-${context.n}`, "aria-pressed": String(off), onclick: press }, off ? "Restore this head" : "Ablate this head");
}
