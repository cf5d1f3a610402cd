// The views that there are, in the order of their tabs: which models each is for, and how it is drawn.

import * as heads from "./view-heads.js";
import * as steps from "./view-steps.js";
import * as words from "./view-words.js";
import { generation } from "./view-writing.js";
import { embeddings } from "./view-places.js";
import * as images from "./view-images.js";
import * as body from "./view-body.js";
import * as over from "./view-over.js";
import { slots } from "./view-slots.js";
import * as sizes from "./view-sizes.js";

const texts = (info) => info.text;

export const VIEWS = {
  picture: { title: "Over the input", about: "What the class token, a clicked patch, a latent or a joint looks at in a picture, sound, clip, set or table", fits: (info) => (info.pictures || info.sounds || info.clips || info.sets || info.tables || info.queries) && info.attends && !info.hides, draw: over.over },
  pose: { title: "Joints", about: "Where joints are, what says so, and where each looks", fits: (info) => info.poses, draw: body.pose },
  segments: { title: "Segments", about: "The class of each pixel, and what a class or a patch looks at", fits: (info) => info.segments, draw: body.segments },
  boxes: { title: "Boxes", about: "What a detector finds, and where each query looks", fits: (info) => info.boxes, draw: images.boxes },
  slots: { title: "Slots", about: "Where each query of a detector places its boxes over many pictures", fits: (info) => info.boxes, draw: slots },
  queries: { title: "All queries", about: "What each latent, slot, joint or class query looks at", fits: (info) => info.queries && info.attends && !info.hides, draw: over.queries },
  hidden: { title: "Masked", about: "What a masked autoencoder makes of the patches it sees", fits: (info) => info.hides, draw: images.hidden },
  caption: { title: "Words on the input", about: "The region attended to at each word", fits: (info) => (info.pictures || info.sounds) && info.words && info.attends, draw: images.caption },
  tokens: { title: "Tokens", about: "Text as the tokenizer cuts it", fits: texts, draw: words.tokens },
  alignment: { title: "Alignment", about: "Which source token each target token looks at", fits: (info) => info.writes && info.crosses && info.text, draw: heads.alignment },
  heads: { title: "All heads", about: "Every layer and head at a glance", fits: (info) => info.attends, draw: heads.grid },
  head: { title: "One head", about: "A matrix, lines between tokens, or the text painted", fits: (info) => info.attends, draw: heads.head },
  steps: { title: "Step by step", about: "Query, keys, scores, softmax and values of one head for one token", fits: (info) => info.attends, draw: steps.steps },
  mask: { title: "Mask", about: "Who may look at whom: the future, windows, padding", fits: (info) => info.attends && info.text, draw: steps.mask },
  flow: { title: "Rollout and flow", about: "Attention through all layers", fits: (info) => info.attends, draw: heads.flow },
  next: { title: "Next word", about: "Probabilities with temperature, top-k and top-p; the logit lens", fits: (info) => info.words, draw: words.next },
  embeddings: { title: "Embeddings", about: "Vectors, how alike they are, and position encodings", fits: () => true, draw: embeddings },
  generation: { title: "Writing", about: "Token after token, the cache, and beam search as a tree", fits: (info) => info.writes || info.continues, draw: generation },
  sizes: { title: "Numbers", about: "Shapes, parameters, work, time and kernels", fits: () => true, draw: sizes.sizes },
};
