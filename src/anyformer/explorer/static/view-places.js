// Vectors and positions.

import { unpack } from "./api.js";
import { choice, el, number, table, visible } from "./dom.js";
import { curve, figure, heatmap } from "./draw.js";
import { rowsOf } from "./view-heads.js";

// A matrix with what the pointer reads.
function map(title, tensor, rowNames, columnNames, more) {
  const [rows, columns] = tensor.shape;
  const said = el("output", {}, "Point at a cell.");
  const nameOf = (names, i) => (names ? visible(names[i]) : i);
  const readout = (i, j, value) => { said.textContent = `${nameOf(rowNames, i)} · ${nameOf(columnNames, j)}: ${number(value, 4)}`; };
  const drawing = heatmap({ values: tensor.values, rows, columns, rowNames, columnNames, readout, label: title, ...more });
  return figure(title, drawing, () => ({ ...(rowNames ? { names: rowNames } : {}), values: rowsOf(tensor) }), said);
}

export async function embeddings(context) {
  const { box, info, set, state, n } = context;
  const got = await context.ask("embeddings", state.site ? { stage: state.site.split("/")[0] } : {});
  const stages = choice("Stage", `stage-${n}`, info.stages.map((name) => [name, name]), got.stage, (value) => set({ site: `${value}/self` }));
  if (info.stages.length > 1) box.append(el("div", { class: "controls" }, stages));
  const alike = unpack(got.alike);
  box.append(map(`What goes into the ${got.stage}: ${got.of[0]} vectors of ${got.of[1]} numbers`, unpack(got.vectors), got.names),
    map("How alike they are (cosine)", alike, got.names, got.names, { scale: 1, write: true }));
  positions(box, got);
}

function positions(box, got) {
  box.append(el("h3", {}, `Positions of this model: ${got.kind === "none" ? "none are encoded here" : got.kind}`));
  if (got.table) box.append(map("The encoding of each position", unpack(got.table)));
  if (got.distance) box.append(figure("How alike two positions are, by distance", curve({ rows: [got.distance], label: "similarity by distance" }), got.distance));
  if (got.bias) box.append(figure("What is added to the scores, by distance, one line a head", curve({ rows: got.bias, label: "bias by distance" }), got.bias));
  box.append(el("h3", {}, "Sines and cosines, as in the first transformer"), toy(got.toy), map("Sines and cosines in full", unpack(got.sines)),
    figure("Sines and cosines by distance: how alike two positions are", curve({ rows: [got.sines_distance], label: "sines by distance" }), got.sines_distance));
}

function toy(rows) {
  const values = Float64Array.from(rows.flat());
  const written = rows.map((row, i) => [String(i), ...row.map((value) => number(value, 3))]);
  const drawing = el("div", { class: "pair" }, table(["position", "sin 1", "cos 1", "sin 2", "cos 2"], written),
    heatmap({ values, rows: rows.length, columns: 4, rowNames: rows.map((_, i) => String(i)), write: true, scale: 1, label: "toy positions" }));
  return figure("Sines and cosines at a toy width of 4", drawing, rows);
}
