// Statistics of a model for the current input.

import { bytes, count, el, number, table } from "./dom.js";
import { bars, figure } from "./draw.js";

export async function stats(context) {
  const got = await context.ask("stats");
  const giga = (flops) => flops / 1e9;
  const flops = got.layers.reduce((sum, one) => sum + one.flops, 0);
  const cache = got.cache ? `; each token adds ${bytes(got.cache)} to the cache` : "";
  context.box.append(
    el("p", { class: "total" }, `${count(got.total)} parameters, ${bytes(got.bytes)} in ${got.dtype}. `,
      `This input: ${giga(flops).toFixed(3)} GFLOP in all layers, ${number(got.milliseconds, 1)} ms${cache}.`),
    layers(got.layers),
    figure("Time per layer (ms)", bars({ names: got.layers.map(nameOf), values: got.layers.map((one) => one.milliseconds), digits: 2, label: "time" }), got.layers),
    parameters(got));
}

const nameOf = (one) => `${one.stage} ${one.layer}`;
const pairs = (found, between) => Object.entries(found).map(([part, value]) => `${part}${between}${value}`).join(", ");

function layers(all) {
  const heads = ["layer", "shape", "heads", "GFLOP", "ms", "parameters", "activations", "full attention matrix", "kernel"];
  const rows = all.map((one) => [nameOf(one), one.shape.join(" × "), pairs(one.heads, " "), (one.flops / 1e9).toFixed(4), number(one.milliseconds, 2),
    bytes(one.bytes), bytes(one.activations), one.attention_bytes ? bytes(one.attention_bytes) : "–", pairs(one.kernels, ": ")]);
  return figure("Layers", table(heads, rows), all);
}

function parameters(got) {
  const share = (one) => `${((100 * one.parameters) / got.total).toFixed(1)}%`;
  const all = got.parameters;
  const drawing = bars({ names: all.map((one) => one.part), values: all.map((one) => one.parameters), digits: 0, label: "parameters", notes: all.map(share) });
  return figure("Parameters per module", drawing, all);
}
