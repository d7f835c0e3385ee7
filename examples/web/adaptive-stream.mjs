// Drives an adaptive ONNX file from JavaScript: the same code in Node and in a browser.
// See docs/reference/adaptive-file.md for what the file's inputs and outputs mean.

const NEXT = "next_";

export class AdaptiveStream {
  /**
   * @param ort The module onnxruntime-node or onnxruntime-web.
   * @param session An InferenceSession of that module on an adaptive file.
   */
  constructor(ort, session) {
    this.ort = ort;
    this.session = session;
    this.stateInputs = session.inputMetadata.filter((item) => item.name.startsWith("state."));
    if (this.stateInputs.length === 0) {
      throw new Error(
        "model: expected an adaptive file with state.* inputs, got none; " +
          "make it with gain-export --adaptive",
      );
    }
    this.flags = {
      true: new ort.Tensor("bool", Uint8Array.of(1), []),
      false: new ort.Tensor("bool", Uint8Array.of(0), []),
    };
    this.reset();
  }

  /** @param model A path, URL, ArrayBuffer or Uint8Array. */
  static async open(ort, model, options = {}) {
    return new AdaptiveStream(ort, await ort.InferenceSession.create(model, options));
  }

  /** Return to the source: every state tensor starts as zeros. */
  reset() {
    this.state = {};
    for (const { name, type, shape } of this.stateInputs) {
      const size = shape.reduce((product, length) => product * length, 1);
      const data = type === "int64" ? new BigInt64Array(size) : new Float32Array(size);
      this.state[name] = new this.ort.Tensor(type, data, shape);
    }
  }

  /** Frames the state has learned from. */
  get frames() {
    return Number(this.state["state.frames"].data[0]);
  }

  /**
   * Predict a batch and, with `update`, learn from it.
   *
   * @param inputs The file's other inputs by name, for example { pixel_values: tensor }.
   * @returns The prediction's outputs by name. With `finite` 0 the batch was rejected.
   */
  async step(inputs, { update = true } = {}) {
    const feeds = { ...this.state, ...inputs, update: this.flags[update] };
    const outputs = await this.session.run(feeds);
    const prediction = {};
    for (const [name, tensor] of Object.entries(outputs)) {
      if (name.startsWith(NEXT)) this.state[name.slice(NEXT.length)] = tensor;
      else prediction[name] = tensor;
    }
    return prediction;
  }

  /** The state as plain records that IndexedDB and structured cloning take. */
  exportState() {
    return Object.entries(this.state).map(([name, tensor]) => ({
      name,
      type: tensor.type,
      dims: [...tensor.dims],
      data: tensor.data.slice(),
    }));
  }

  /** Continue from `exportState`'s records; false, and nothing changed, if they do not fit. */
  importState(records) {
    const byName = new Map(records.map((record) => [record.name, record]));
    const fits = this.stateInputs.every(({ name, type, shape }) => {
      const record = byName.get(name);
      return record && record.type === type && String(record.dims) === String(shape);
    });
    if (!fits || byName.size !== this.stateInputs.length) return false;
    for (const { name, type, dims, data } of records) {
      this.state[name] = new this.ort.Tensor(type, data.slice(), dims);
    }
    return true;
  }
}
