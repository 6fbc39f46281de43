// node transformers_js.cjs REQUEST: the vectors that transformers.js and the runtime of browsers give, as JSON.
//
// REQUEST is a JSON file: folder (an export), modules (a node_modules folder), texts, pooling (of feature-extraction).
const fs = require("fs");
const path = require("path");

const asked = JSON.parse(fs.readFileSync(process.argv[2], "utf-8"));
const load = (name) => require(require.resolve(name, { paths: [asked.modules] }));

async function main() {
  const { AutoModel, AutoTokenizer, env, pipeline } = load("@huggingface/transformers");
  env.allowRemoteModels = false;
  env.localModelPath = path.dirname(asked.folder);
  const name = path.basename(asked.folder);
  const found = { version: env.version };

  for (const dtype of ["fp32", "q8"]) {
    const extract = await pipeline("feature-extraction", name, { dtype });
    found[`pipeline ${dtype}`] = (await extract(asked.texts, { pooling: asked.pooling })).tolist();
    found[`alone ${dtype}`] = [];
    for (const text of asked.texts) {
      found[`alone ${dtype}`].push((await extract(text, { pooling: asked.pooling })).tolist()[0]);
    }
  }
  const tokenizer = await AutoTokenizer.from_pretrained(name);
  const model = await AutoModel.from_pretrained(name, { dtype: "q8" });
  const inputs = tokenizer(asked.texts, { padding: true, truncation: true });
  found["sentence_embedding q8"] = (await model(inputs)).sentence_embedding.tolist();

  const web = load("onnxruntime-web"); // WebAssembly, as in a browser
  web.env.wasm.numThreads = 1;
  const bytes = fs.readFileSync(path.join(asked.folder, "onnx/model_quantized.onnx"));
  const session = await web.InferenceSession.create(bytes, { executionProviders: ["wasm"] });
  const feeds = {};
  for (const input of session.inputNames) {
    feeds[input] = new web.Tensor("int64", inputs[input].data, inputs[input].dims);
  }
  const output = (await session.run(feeds)).sentence_embedding;
  const size = output.dims[1];
  found["browser q8"] = asked.texts.map((_, i) => Array.from(output.data.slice(i * size, (i + 1) * size)));
  console.log(JSON.stringify(found));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
