// The numbers of a model, for the input at hand.

import { bytes, count, el, number, table } from "./dom.js";
import { bars, figure } from "./draw.js";

export async function sizes(context) {
  const got = await context.ask("sizes");
  const flops = got.layers.reduce((sum, one) => sum + one.flops, 0);
  context.box.append(el("p", { class: "total" }, `${count(got.total)} parameters, ${bytes(got.bytes)} as ${got.dtype}. This input: ${(flops / 1e9).toFixed(3)} GFLOP in the layers, ${number(got.milliseconds, 1)} ms`
    + (got.cache ? `; each token adds ${bytes(got.cache)} to the cache.` : ".")));
  const names = got.layers.map((one) => `${one.stage} ${one.layer}`);
  context.box.append(figure("Layers", table(["layer", "shape", "heads", "GFLOP", "ms", "kernel"], got.layers.map((one, i) => [names[i], one.shape.join(" × "), Object.entries(one.heads).map(([part, n]) => `${part} ${n}`).join(", "), (one.flops / 1e9).toFixed(4), number(one.milliseconds, 2), Object.entries(one.kernels).map(([part, name]) => `${part}: ${name}`).join(", ")])), got.layers),
    figure("Time of each layer (ms)", bars({ names, values: got.layers.map((one) => one.milliseconds), digits: 2, label: "time" }), got.layers),
    figure("Parameters of each part", bars({ names: got.parameters.map((one) => one.part), values: got.parameters.map((one) => one.parameters), digits: 0, label: "parameters", notes: got.parameters.map((one) => `${((100 * one.parameters) / got.total).toFixed(1)}%`) }), got.parameters));
}
