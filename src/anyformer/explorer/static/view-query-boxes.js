// Where each object query of a detector places its boxes: one square per query, one dot per image. Small boxes are green,
// large wide boxes red, large tall boxes blue (Carion et al. 2020, figure 7).

import { part, unpack } from "./api.js";
import { el, svg } from "./dom.js";
import { figure, ink, sheet, soft, text } from "./draw.js";
import { images } from "./uploads.js";

const SIDE = 78, GAP = 14, ACROSS = 10, MAX = 400; // images
const found = new Map(); // results so far, so that a click does not compute them again

export async function queryBoxes(context) {
  const { box, state } = context;
  const holder = el("div", {}), progress = el("p", { role: "status" });
  box.append(el("p", {}, "One square per object query, one dot per image: the center of the predicted box. Green: small boxes. Red: large and wide. Blue: large and tall. Click a square to see the attention of its query."), progress, holder);
  const given = images();
  const key = `${context.id}|${state.ablate}|${given.map((one) => one.mark).join()}`;
  const all = found.get(key) || { boxes: [], colors: [], next: 0, of: given.length || 1, source: "" };
  found.set(key, all);
  const draw = () => {
    const source = { given: "your images", folder: "images of the folder", example: "generated examples; add your own images above, or pass a folder with --images" }[all.source];
    progress.textContent = `${all.boxes.length} of ${Math.min(all.of, MAX)} ${source}`;
    holder.replaceChildren(figure("Where each query places its boxes", map(context, all), { boxes: all.boxes.map((one) => nested(one)) }));
  };
  while (all.next < Math.min(all.of, MAX)) {
    const some = given.slice(all.next, all.next + 8).map((one) => one.data);
    const got = await context.ask("query_boxes", { top: all.next, ...(some.length ? { images: some } : {}) });
    const boxes = unpack(got.boxes), colors = unpack(got.colors);
    for (let i = 0; i < boxes.shape[0]; i++) { all.boxes.push(part(boxes, i)); all.colors.push(part(colors, i)); }
    Object.assign(all, { next: got.next, of: given.length || got.of, source: got.source });
    draw();
  }
  draw();
}

const nested = (one) => [...Array(one.shape[0]).keys()].map((query) => [...part(one, query).values]);

function map(context, all) {
  const nQueries = all.boxes[0].shape[0];
  const drawing = sheet(ACROSS * (SIDE + GAP), Math.ceil(nQueries / ACROSS) * (SIDE + 22) + 4, "query boxes");
  const r = Math.max(1, Math.min(3.5, 60 / all.boxes.length));
  for (let query = 0; query < nQueries; query++) {
    const [x, y] = [(query % ACROSS) * (SIDE + GAP), Math.floor(query / ACROSS) * (SIDE + 22) + 14];
    const act = () => context.set({ view: "boxes", pos: query });
    drawing.append(text(x, y - 3, String(query), { fill: ink(), "font-size": 10 }), svg("rect", { class: "pick", x, y, width: SIDE, height: SIDE, fill: "transparent", stroke: soft(), "stroke-opacity": 0.6, tabindex: 0, role: "button", "aria-label": `query ${query}`, onclick: act, onkeydown: (event) => event.key === "Enter" && act() }));
    all.boxes.forEach((one, i) => {
      const [cx, cy, width, height] = part(one, query).values;
      const tint = part(all.colors[i], query).values;
      drawing.append(svg("circle", { class: "place", cx: x + cx * SIDE, cy: y + cy * SIDE, r, fill: `rgb(${[...tint].map((value) => Math.round(255 * value)).join(" ")})`, "fill-opacity": 0.75, "pointer-events": "none",
        "data-query": query, "data-image": i, "data-box": [cx, cy, width, height].map((value) => value.toFixed(4)).join(" ") }));
    });
  }
  return drawing;
}
