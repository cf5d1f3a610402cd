// Where each query of a detector places its boxes over many pictures: a square a slot, a dot a picture. Green is small, red
// large and lying, blue large and standing.

import { part, unpack } from "./api.js";
import { el, svg } from "./dom.js";
import { figure, ink, sheet, soft, text } from "./draw.js";
import { pictures } from "./things.js";

const SIDE = 78, GAP = 14, ACROSS = 10, MOST = 400; // pictures
const found = new Map(); // what was asked before, so that a click does not ask for all of it again

export async function slots(context) {
  const { box, state } = context;
  const holder = el("div", {}), said = el("p", { role: "status" });
  box.append(el("p", {}, "A square for each query, a dot for each picture: the middle of the box that the query says. Green: small. Red: large and lying. Blue: large and standing. Click on a square to see where its query looks."), said, holder);
  const given = pictures();
  const key = `${context.id}|${state.mute}|${given.map((one) => one.mark).join()}`;
  const all = found.get(key) || { boxes: [], colours: [], next: 0, of: given.length || 1, source: "" };
  found.set(key, all);
  const draw = () => {
    const source = { given: "your images", folder: "images of the folder", example: "drawn examples; give your own above, or a folder with --images" }[all.source];
    said.textContent = `${all.boxes.length} of ${Math.min(all.of, MOST)} ${source}`;
    holder.replaceChildren(figure("Where each query places its boxes", map(context, all), { boxes: all.boxes.map((one) => nested(one)) }));
  };
  while (all.next < Math.min(all.of, MOST)) {
    const some = given.slice(all.next, all.next + 8).map((one) => one.data);
    const got = await context.ask("slots", { top: all.next, ...(some.length ? { pictures: some } : {}) });
    const boxes = unpack(got.boxes), colours = unpack(got.colours);
    for (let i = 0; i < boxes.shape[0]; i++) { all.boxes.push(part(boxes, i)); all.colours.push(part(colours, i)); }
    Object.assign(all, { next: got.next, of: given.length || got.of, source: got.source });
    draw();
  }
  draw();
}

const nested = (one) => [...Array(one.shape[0]).keys()].map((slot) => [...part(one, slot).values]);

function map(context, all) {
  const slots = all.boxes[0].shape[0];
  const drawing = sheet(ACROSS * (SIDE + GAP), Math.ceil(slots / ACROSS) * (SIDE + 22) + 4, "query slots");
  const r = Math.max(1, Math.min(3.5, 60 / all.boxes.length));
  for (let slot = 0; slot < slots; slot++) {
    const [x, y] = [(slot % ACROSS) * (SIDE + GAP), Math.floor(slot / ACROSS) * (SIDE + 22) + 14];
    const act = () => context.set({ view: "boxes", pos: slot });
    drawing.append(text(x, y - 3, String(slot), { fill: ink(), "font-size": 10 }), svg("rect", { class: "pick", x, y, width: SIDE, height: SIDE, fill: "transparent", stroke: soft(), "stroke-opacity": 0.6, tabindex: 0, role: "button", "aria-label": `query ${slot}`, onclick: act, onkeydown: (event) => event.key === "Enter" && act() }));
    all.boxes.forEach((one, i) => {
      const [cx, cy, width, height] = part(one, slot).values;
      const tint = part(all.colours[i], slot).values;
      drawing.append(svg("circle", { class: "place", cx: x + cx * SIDE, cy: y + cy * SIDE, r, fill: `rgb(${[...tint].map((value) => Math.round(255 * value)).join(" ")})`, "fill-opacity": 0.75, "pointer-events": "none",
        "data-slot": slot, "data-picture": i, "data-box": [cx, cy, width, height].map((value) => value.toFixed(4)).join(" ") }));
    });
  }
  return drawing;
}
