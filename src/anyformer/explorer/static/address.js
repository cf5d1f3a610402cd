// The state of the page is stored in the URL fragment, so a view can be bookmarked, shared and left with the back button.

export const EXAMPLES = {
  "it, tired": "The animal didn't cross the street because it was too tired.",
  "it, wide": "The animal didn't cross the street because it was too wide.",
  "EEA": "The agreement on the European Economic Area was signed in August 1992.",
};

export const START = {
  models: "", view: "", stop: 0, see: "",
  text: EXAMPLES["it, tired"], pair: "", target: "", row: 0,
  site: "", layer: 0, head: "", pos: -1, to: -1, top: 0, left: 0, mode: "matrix", raw: 0, ablate: "",
  pad: 0, side: "right", softmaxTemperature: 1,
  temp: 1, k: 0, p: 1, sample: 0, seed: 0, n: 20, beams: 3, step: 0,
  share: 0.75, threshold: 0.5, axes: "0.1",
};

export function read() {
  const found = { ...START };
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
    if (name in START) found[name] = typeof START[name] === "number" ? Number(value) || 0 : value;
  }
  return found;
}

// With `step`, add an entry to the browser history; without it, replace the current entry (sliders).
export function write(state, step) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) if (value !== START[name]) params.set(name, value);
  const hash = `#${params}`;
  if (hash === (location.hash || "#")) return;
  if (step) history.pushState(null, "", hash);
  else history.replaceState(null, "", hash);
}

// Ablated heads, such as "decoder.0.self.1". Heads of the second and later panels have a prefix: "1/decoder.0.self.1".

const nameOf = (n, stage, layer, part, head) => `${n ? `${n}/` : ""}${stage}.${layer}.${part}.${head}`;
const all = (state) => state.ablate.split(",").filter(Boolean);

export function isAblated(state, n, ...place) { return all(state).includes(nameOf(n, ...place)); }

export function toggled(state, n, ...place) {
  const name = nameOf(n, ...place);
  return (isAblated(state, n, ...place) ? all(state).filter((one) => one !== name) : [...all(state), name]).join(",");
}

export function ablatedHeads(state) {
  return all(state).map((one) => {
    const [n, name] = one.includes("/") ? one.split("/") : ["0", one];
    const [stage, layer, part, head] = name.split(".");
    return { n: Number(n), stage, layer: Number(layer), part, head: Number(head) };
  });
}
