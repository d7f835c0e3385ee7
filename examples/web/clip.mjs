// Reads a clip written by examples/record_clip.py: uint8 RGB frames at the network's own size.

export class Clip {
  /** @param header clip.json, parsed. @param bytes clip.bin. */
  constructor(header, bytes) {
    const expected = header.frames * header.height * header.width * 3;
    if (bytes.length !== expected) {
      throw new Error(`clip.bin: expected ${expected} bytes, got ${bytes.length}; record it again`);
    }
    Object.assign(this, header);
    this.bytes = bytes;
  }

  get stride() {
    return this.height * this.width * 3;
  }

  /** Frame `index`, (H, W, 3) uint8 RGB, without a copy. */
  frame(index) {
    return this.bytes.subarray(index * this.stride, (index + 1) * this.stride);
  }
}

/**
 * One frame as the network takes it: (3, H, W) float32, scaled to [0, 1] and normalised.
 *
 * The operations are float32 one by one, so that the values are Python's to the last bit.
 *
 * @param rgb (H, W, 3) uint8. @param spec height, width, mean, std, channel_order.
 */
export function toPixelValues(rgb, { height, width, mean, std, channel_order: order }) {
  const plane = height * width;
  const values = new Float32Array(3 * plane);
  for (let channel = 0; channel < 3; channel += 1) {
    const levels = new Float32Array(256);
    const [middle, spread] = [Math.fround(mean[channel]), Math.fround(std[channel])];
    for (let level = 0; level < 256; level += 1) {
      const scaled = Math.fround(level / 255);
      levels[level] = Math.fround(Math.fround(scaled - middle) / spread);
    }
    const source = order === "BGR" ? 2 - channel : channel;
    for (let pixel = 0; pixel < plane; pixel += 1) {
      values[channel * plane + pixel] = levels[rgb[3 * pixel + source]];
    }
  }
  return values;
}
