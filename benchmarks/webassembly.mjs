// Runs exported modules and onnxruntime-web for `webassembly.py`: a line of standard input is a contender and a
// count, and the line of the answer has the sum of its results, and the least time of a call in seconds.

import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [folder, peers] = process.argv.slice(2);
const works = {};

for (const { name, input, dims, type } of JSON.parse(readFileSync(`${folder}/works.json`, "utf8"))) {
  const bytes = readFileSync(`${folder}/${name}.bin`);
  const shared = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  const cells = type === "float32" ? new Float32Array(shared) : new Int32Array(shared);
  const { load } = await import(pathToFileURL(`${folder}/${name}.mjs`));
  const model = await load();
  works[`${name} wasm`] = () => model.predict({ [input]: cells }).scores;
  if (peers) {
    const ort = await import(pathToFileURL(createRequire(`${peers}/`).resolve("onnxruntime-web")));
    ort.env.wasm.numThreads = 1;
    const session = await ort.InferenceSession.create(`${folder}/${name}.onnx`, { executionProviders: ["wasm"] });
    const feeds = { [input]: new ort.Tensor(type, cells, dims) };
    works[`${name} onnxruntime-web`] = async () => (await session.run(feeds)).scores.data;
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const [name, count] = line.split(": ");
  let found, least = Infinity;
  for (let k = 0; k < Number(count); ++k) {
    const begun = performance.now();
    const made = works[name]();
    found = made instanceof Promise ? await made : made;
    least = Math.min(least, performance.now() - begun);
  }
  console.log(found.reduce((sum, each) => sum + Math.abs(each), 0), least / 1000);
}
