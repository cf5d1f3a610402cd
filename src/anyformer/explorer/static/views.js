// The views in the order of their tabs: title, description, the models they apply to, and the function that draws them.

import * as heads from "./view-heads.js";
import * as steps from "./view-steps.js";
import * as tokens from "./view-tokens.js";
import { generation } from "./view-generation.js";
import { embeddings } from "./view-embeddings.js";
import * as images from "./view-images.js";
import * as keypoints from "./view-keypoints.js";
import * as input from "./view-input.js";
import { queryBoxes } from "./view-query-boxes.js";
import * as stats from "./view-stats.js";

const hasText = (info) => info.text;

export const VIEWS = {
  input: { title: "Attention over the input", description: "Attention of the class token, a patch, a latent or a keypoint query over an image, audio, video, set or table", applies: (info) => (info.images || info.audio || info.clips || info.sets || info.tables || info.queries) && info.attention && !info.reconstruction, draw: input.input },
  pose: { title: "Keypoints", description: "Keypoints, their heat maps, and the attention of each keypoint", applies: (info) => info.keypoints, draw: keypoints.pose },
  segments: { title: "Segmentation", description: "The class of each pixel, and the attention of a class query or a patch", applies: (info) => info.segmentation, draw: keypoints.segments },
  boxes: { title: "Detections", description: "Detected boxes, and the attention of each object query", applies: (info) => info.boxes, draw: images.boxes },
  query_boxes: { title: "Query boxes", description: "Where each object query of a detector places its boxes, over many images", applies: (info) => info.boxes, draw: queryBoxes },
  queries: { title: "All queries", description: "The attention of each latent, object, keypoint or class query", applies: (info) => info.queries && info.attention && !info.reconstruction, draw: input.queries },
  reconstruction: { title: "Reconstruction", description: "Masked patches and their reconstruction by a masked autoencoder", applies: (info) => info.reconstruction, draw: images.reconstruction },
  words: { title: "Attention by token", description: "The image or audio region attended to at each generated token", applies: (info) => (info.images || info.audio) && info.language_head && info.attention, draw: images.wordAttention },
  tokens: { title: "Tokens", description: "The text split into tokens", applies: hasText, draw: tokens.tokens },
  alignment: { title: "Alignment", description: "Cross-attention from target tokens to source tokens", applies: (info) => info.encoder_decoder && info.cross_attention && info.text, draw: heads.alignment },
  heads: { title: "All heads", description: "The attention matrix of every layer and head", applies: (info) => info.attention, draw: heads.grid },
  head: { title: "One head", description: "One attention head as a matrix, as lines or as highlighted text", applies: (info) => info.attention, draw: heads.head },
  steps: { title: "Step by step", description: "Query, keys, scores, softmax and values of one head for one token", applies: (info) => info.attention, draw: steps.steps },
  mask: { title: "Mask", description: "Which keys each query may attend to: causal, window and padding masks", applies: (info) => info.attention && info.text, draw: steps.mask },
  flow: { title: "Rollout and flow", description: "Attention rollout and attention flow through all layers", applies: (info) => info.attention, draw: heads.flow },
  next: { title: "Next token", description: "Next-token probabilities with temperature, top-k and top-p; the logit lens", applies: (info) => info.language_head, draw: tokens.next },
  embeddings: { title: "Embeddings", description: "Embeddings, their cosine similarity, and position encodings", applies: () => true, draw: embeddings },
  generation: { title: "Generation", description: "Step-by-step generation, the key/value cache, and beam search as a tree", applies: (info) => info.encoder_decoder || info.decoder_only, draw: generation },
  stats: { title: "Model statistics", description: "Shapes, parameters, FLOPs, time and kernels", applies: () => true, draw: stats.stats },
};
