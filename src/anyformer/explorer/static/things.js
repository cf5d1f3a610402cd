// Files that are neither pictures nor sounds, on their way to the server: clips, sets and tables; and the pictures of a
// small data set. What is not given is an example that the server makes by formula.

import { el } from "./dom.js";
import { shrink } from "./pictures.js";

const LARGEST = 5.5 * 2 ** 20; // bytes: in base64 and with the rest it stays under what the server takes
const KINDS = {
  clip: { title: "Clip", reads: (info) => info.clips, accept: "video/*,image/gif,.npz,.zip", ends: /\.(npz|zip|mp4|mkv|avi|mov|webm|mpe?g|m4v|gif)$/i, about: "a video, a zip of frames, or an npz [frames, rows, columns, 3]" },
  items: { title: "Set or table", reads: (info) => info.sets || info.tables, accept: ".csv,.tsv,.txt,.npz", ends: /\.(npz|csv|tsv|txt)$/i, about: "a CSV (an item, or a row, in each line) or an npz" },
};
const held = {}; // kind -> {name, data}
let many = []; // pictures {data, mark}

export const pictures = () => many;

export function asked(state) {
  const found = { row: state.row };
  for (const kind of Object.keys(KINDS)) if (held[kind]) found[kind] = held[kind].data;
  return found;
}

// Whether the file was one of ours; a mistake is said in one sentence.
export async function take(file, infos) {
  const kind = Object.keys(KINDS).find((name) => infos.some(KINDS[name].reads) && KINDS[name].ends.test(file.name));
  if (!kind) return false;
  if (file.size > LARGEST) throw new Error(`${file.name} has ${(file.size / 2 ** 20).toFixed(1)} MB; the most is ${(LARGEST / 2 ** 20).toFixed(1)} MB.`);
  held[kind] = { name: file.name, data: base64(new Uint8Array(await file.arrayBuffer())) };
  return true;
}

function base64(bytes) {
  let letters = "";
  for (let i = 0; i < bytes.length; i += 8192) letters += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(letters);
}

// The fields for what these models read. `changed` draws anew, `say` shows a mistake.
export function fields(infos, changed, say) {
  const rows = Object.keys(KINDS).filter((name) => infos.some(KINDS[name].reads)).map((name) => field(name, infos, changed, say));
  if (infos.some((info) => info.boxes)) rows.push(gallery(changed, say));
  return rows;
}

function field(name, infos, changed, say) {
  const { title, accept, about } = KINDS[name];
  const input = el("input", { id: `${name}-file`, type: "file", accept, onchange: async () => {
    try {
      if (!input.files[0]) return;
      if (!(await take(input.files[0], infos))) throw new Error(`${input.files[0].name} is none of these: ${about}.`);
      changed({ row: 0, pos: -1 });
    } catch (error) { say(error.message, true); }
  } });
  return el("div", { class: "row" }, el("label", { title: about }, `${title} `, input),
    el("button", { type: "button", id: `${name}-example`, onclick: () => { delete held[name]; changed({ row: 0, pos: -1 }); } }, "The example"), el("span", { class: "held" }, held[name] ? held[name].name : `an example; or give ${about}`));
}

function gallery(changed, say) {
  const input = el("input", { id: "many-files", type: "file", accept: "image/*", multiple: true, onchange: async () => {
    const some = [...input.files].slice(0, 400);
    try {
      many = await Promise.all(some.map(async (file) => ({ data: (await shrink(file)).data, mark: `${file.name}:${file.size}` })));
      changed({});
    } catch { say("One of those files is no picture that this browser can read.", true); }
  } });
  return el("div", { class: "row" }, el("label", { title: "Several pictures, for the map of query slots" }, "Pictures for the slot map ", input), el("span", { class: "held" }, many.length ? `${many.length} pictures` : ""));
}
