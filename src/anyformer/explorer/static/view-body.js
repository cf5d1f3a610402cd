// Joints over a picture with what says where they are, and a class for each pixel of it.

import { part, unpack } from "./api.js";
import { choice, el, number, slider, svg, table, visible } from "./dom.js";
import { bars, figure, sheet } from "./draw.js";
import { headGrid, most } from "./head-grid.js";
import * as surface from "./surface.js";
import { rowsOf } from "./view-heads.js";

const hue = (i) => `hsl(${(i * 222.5) % 360} 85% 55%)`;

export async function pose(context) {
  const { state, set, box, n } = context;
  const got = await context.ask("pose");
  const joint = state.pos < 0 ? 0 : Math.min(state.pos, got.names.length - 1);
  const map = part(unpack(got.maps), joint);
  box.append(el("div", { class: "controls" }, choice("Joint", `joint-${n}`, got.names.map((name, i) => [i, name]), joint, (value) => set({ pos: Number(value) }))),
    el("div", { class: "pair" }, figure(`${got.names.length} joints; click on one`, joints(context, got, joint), got.joints),
      figure(got.points ? `How well each cell fits ${got.names[joint]}` : `The heat map of ${got.names[joint]}`, dotted(surface.picture(got.image, got.size, map, "map of the joint"), got, joint), rowsOf(map), el("output", { class: "peak" }, `the most: ${number(got.peaks[joint], 4)}`))));
  await looks(context, got, joint);
  box.append(figure("One by one", table(["joint", "x", "y", "score", "most of its map"], got.joints.map(([x, y, score], i) => [got.names[i], number(x, 4), number(y, 4), number(score, 3), number(got.peaks[i], 4)])), got.joints));
}

// A joint that has a query of its own: where that looks; else where the patch looks that it lies in.
async function looks(context, got, joint) {
  const seen = await context.ask("picture");
  const own = seen.askers.find((one) => !one.cells && one.queries === got.names.length);
  const asker = own || seen.askers.find((one) => one.cells);
  if (!asker) return;
  const layer = asker.layers.includes(context.state.layer) ? context.state.layer : asker.layers.at(-1);
  const cell = (share, size) => Math.max(0, Math.min(size - 1, Math.floor(share * size)));
  const [x, y] = got.joints[joint], [rows, columns] = seen.shape;
  const at = own ? joint : asker.before + cell(y, rows) * columns + cell(x, columns);
  const found = await context.ask("over", { stage: asker.stage, part: asker.part, layer, position: at });
  const mean = unpack(found.mean);
  context.box.append(el("div", { class: "controls" }, choice("Layer", `layer-${context.n}`, asker.layers.map((i) => [i, i]), layer, (value) => context.set({ layer: Number(value) }))),
    figure(`Where ${own ? `the query of ${got.names[joint]}` : `the patch under ${got.names[joint]}`} looks: layer ${layer}, mean of its heads`, surface.draw(seen, mean, "attention of the joint", { mark: own ? -1 : at - asker.before }), rowsOf(mean), most(found.most)),
    headGrid(context, seen, asker, layer, unpack(found.maps), { mark: own ? -1 : at - asker.before, axes: [0, 1] }));
}

function joints(context, got, chosen) {
  const wide = 420, high = Math.round((wide * got.size[0]) / got.size[1]);
  const drawing = surface.fit(sheet(wide, high, "joints", svg("image", { href: got.image, width: wide, height: high, preserveAspectRatio: "none" })));
  const place = (i) => [got.joints[i][0] * wide, got.joints[i][1] * high];
  for (const [a, b] of got.bones) drawing.append(svg("line", { x1: place(a)[0], y1: place(a)[1], x2: place(b)[0], y2: place(b)[1], stroke: hue(a), "stroke-width": 2.5 }));
  got.names.forEach((name, i) => {
    const act = () => context.set({ pos: i });
    drawing.append(svg("circle", { class: "pick joint", cx: place(i)[0], cy: place(i)[1], r: i === chosen ? 7 : 4.5, fill: hue(i), stroke: i === chosen ? "#ff5a36" : "#ffffff", "stroke-width": i === chosen ? 3 : 1.2, tabindex: 0, role: "button", "aria-label": name, onclick: act, onkeydown: (event) => event.key === "Enter" && act() },
      svg("title", {}, `${name}: ${number(got.joints[i][0])}, ${number(got.joints[i][1])}`)));
  });
  return drawing;
}

function dotted(drawing, got, joint) {
  const [, , wide, high] = drawing.getAttribute("viewBox").split(" ").map(Number);
  drawing.append(svg("circle", { cx: got.joints[joint][0] * wide, cy: got.joints[joint][1] * high, r: 5, fill: "none", stroke: "#ff5a36", "stroke-width": 2 }));
  return drawing;
}

export async function segments(context) {
  const { state, set, box, n } = context;
  const got = await context.ask("segments");
  const wide = 420, high = Math.round((wide * got.size[0]) / got.size[1]);
  const mask = svg("image", { href: got.mask, width: wide, height: high, preserveAspectRatio: "none", opacity: state.share, "image-rendering": "pixelated" });
  const drawing = surface.fit(sheet(wide, high, "classes of pixels", svg("image", { href: got.image, width: wide, height: high, preserveAspectRatio: "none" }), mask));
  const colours = got.classes.map((one) => el("span", { class: "chip" }, swatch(one.colour), ` ${visible(one.text)}`));
  box.append(el("div", { class: "controls" }, slider("How much of the mask is seen", `share-${n}`, { min: 0, max: 1, step: 0.05, value: state.share, show: (x) => `${Math.round(100 * x)}%` }, (value) => { set({ share: value }, true); mask.setAttribute("opacity", value); })),
    el("div", { class: "pair" }, figure("The class of each pixel", drawing, got.classes, el("div", { class: "chips" }, colours)),
      figure("How much of the picture each has", bars({ names: got.classes.map((one) => one.text), values: got.classes.map((one) => one.share), scale: 1, digits: 4, label: "shares" }), got.classes)));
  await asked(context);
}

function swatch([red, green, blue]) {
  return svg("svg", { width: 12, height: 12, viewBox: "0 0 12 12", "aria-hidden": "true" }, svg("rect", { width: 12, height: 12, fill: `rgb(${red} ${green} ${blue})` }));
}

// A class query, or a patch that is clicked on.
async function asked(context) {
  const { state, set, box, n } = context;
  const seen = await context.ask("picture");
  const asker = seen.askers.find((one) => `${one.stage}/${one.part}` === state.site) || seen.askers.at(-1);
  if (!asker) return;
  const layer = asker.layers.includes(state.layer) ? state.layer : asker.layers.at(-1);
  const queries = asker.names.slice(asker.before);
  const at = state.pos >= 0 && state.pos < asker.queries ? state.pos : queries.length ? asker.before + asker.cells : asker.before + Math.floor(asker.cells / 2);
  const found = await context.ask("over", { stage: asker.stage, part: asker.part, layer, position: at });
  const mean = unpack(found.mean);
  const options = { mark: at - asker.before < asker.cells ? at - asker.before : -1, pick: (i) => set({ pos: i + asker.before }), axes: [0, 1] };
  box.append(el("div", { class: "controls" },
    seen.askers.length > 1 ? choice("Who asks", `site-${n}`, seen.askers.map((one) => [`${one.stage}/${one.part}`, `${one.stage}: ${one.part}`]), `${asker.stage}/${asker.part}`, (value) => set({ site: value, layer: 0, pos: -1 })) : "",
    choice("Layer", `layer-${n}`, asker.layers.map((i) => [i, i]), layer, (value) => set({ layer: Number(value) })),
    queries.length ? choice("Class query", `query-${n}`, [["", "a patch"], ...queries.map((name, i) => [asker.before + asker.cells + i, visible(name)])], options.mark < 0 ? at : "", (value) => set({ pos: value === "" ? asker.before : Number(value) })) : ""),
    figure(`Where ${options.mark < 0 ? `the query of ${visible(found.query)}` : `patch ${visible(found.query)}`} looks: layer ${layer}, mean of its heads; click on a patch to ask it`, surface.draw(seen, mean, "attention over the picture", options), rowsOf(mean), most(found.most)),
    headGrid(context, seen, asker, layer, unpack(found.maps), options));
}
