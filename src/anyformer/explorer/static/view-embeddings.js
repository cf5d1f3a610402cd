// Embeddings and position encodings.

import { unpack } from "./api.js";
import { choice, el, number, table, visible } from "./dom.js";
import { curve, figure, heatmap } from "./draw.js";
import { rowsOf } from "./view-heads.js";

// A heat map with a readout of the cell under the pointer.
function map(title, tensor, rowNames, columnNames, more) {
  const [rows, columns] = tensor.shape;
  const output = el("output", {}, "Point at a cell to read its value.");
  const nameOf = (names, i) => (names ? visible(names[i]) : i);
  const readout = (i, j, value) => { output.textContent = `${nameOf(rowNames, i)} · ${nameOf(columnNames, j)}: ${number(value, 4)}`; };
  const drawing = heatmap({ values: tensor.values, rows, columns, rowNames, columnNames, readout, label: title, ...more });
  return figure(title, drawing, () => ({ ...(rowNames ? { names: rowNames } : {}), values: rowsOf(tensor) }), output);
}

export async function embeddings(context) {
  const { box, info, set, state, n } = context;
  const got = await context.ask("embeddings", state.site ? { stage: state.site.split("/")[0] } : {});
  const stages = choice("Stage", `stage-${n}`, info.stages.map((name) => [name, name]), got.stage, (value) => set({ site: `${value}/self` }));
  if (info.stages.length > 1) box.append(el("div", { class: "controls" }, stages));
  const similarity = unpack(got.similarity);
  box.append(map(`Input of the ${got.stage}: ${got.of[0]} vectors of width ${got.of[1]}`, unpack(got.vectors), got.names),
    map("Cosine similarity", similarity, got.names, got.names, { scale: 1, write: true }));
  positions(box, got);
}

function positions(box, got) {
  box.append(el("h3", {}, `Position encoding of this model: ${got.kind === "none" ? "none in this stage" : got.kind}`));
  if (got.table) box.append(map("The encoding of each position", unpack(got.table)));
  if (got.distance) box.append(figure("Similarity of two positions by distance", curve({ rows: [got.distance], label: "similarity by distance" }), got.distance));
  if (got.bias) box.append(figure("Bias added to the scores by distance, one line per head", curve({ rows: got.bias, label: "bias by distance" }), got.bias));
  box.append(el("h3", {}, "Sinusoidal encoding, as in the original transformer"), toy(got.toy), map("Sinusoidal encoding, full width", unpack(got.sinusoidal)),
    figure("Sinusoidal encoding: similarity by distance", curve({ rows: [got.sinusoidal_distance], label: "sinusoidal similarity by distance" }), got.sinusoidal_distance));
}

function toy(rows) {
  const values = Float64Array.from(rows.flat());
  const written = rows.map((row, i) => [String(i), ...row.map((value) => number(value, 3))]);
  const drawing = el("div", { class: "pair" }, table(["position", "sin 1", "cos 1", "sin 2", "cos 2"], written),
    heatmap({ values, rows: rows.length, columns: 4, rowNames: rows.map((_, i) => String(i)), write: true, scale: 1, label: "toy positions" }));
  return figure("Sinusoidal encoding, width 4", drawing, rows);
}
