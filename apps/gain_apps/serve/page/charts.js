// Small line charts in SVG; one point per bin, a gap where no frame came.

const NS = "http://www.w3.org/2000/svg";
const HEIGHT = 100;

export class Chart {
  // series: [{ key, name, tone, of(point) -> number | null }]; top: fixed upper end, or null.
  constructor(parent, { title, series, top = null, format }) {
    Object.assign(this, { series, top, format, points: [], span: 600, end: 0, width: 1 });
    this.root = child(parent, "div", "chart");
    const head = child(this.root, "div", "head");
    child(head, "b").textContent = title;
    this.keys = series.map(({ name, tone }) => {
      const key = child(head, "span", `key ${tone}`);
      key.dataset.name = name;
      return key;
    });
    this.plot = child(this.root, "div", "plot");
    this.svg = this.plot.appendChild(document.createElementNS(NS, "svg"));
    this.svg.setAttribute("viewBox", `0 0 1000 ${HEIGHT}`);
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("role", "img");
    this.svg.setAttribute("aria-label", title);
    for (const y of [0, HEIGHT / 2, HEIGHT]) this.#line(y);
    this.paths = series.map(({ tone }) => {
      const path = this.svg.appendChild(document.createElementNS(NS, "path"));
      path.setAttribute("class", tone);
      return path;
    });
    this.high = child(this.plot, "span", "high");
    this.low = child(this.plot, "span", "low");
    this.cursor = child(this.plot, "span", "cursor");
    this.cursor.hidden = true;
    const axis = child(this.root, "div", "axis");
    this.from = child(axis, "span");
    child(axis, "span").textContent = "now";
    this.plot.addEventListener("pointermove", (event) => this.#point(event));
    this.plot.addEventListener("pointerleave", () => this.#point(null));
  }

  draw(points, { span, end, width }) {
    Object.assign(this, { points, span, end, width });
    const values = points.flatMap((point) => this.series.map(({ of }) => of(point)));
    const known = values.filter((value) => value !== null);
    const least = Math.min(0, ...known);
    this.scale = [least, this.top ?? rounded(Math.max(...known, least + 1e-3))];
    this.series.forEach(({ of }, index) => {
      this.paths[index].setAttribute("d", this.#path(of));
    });
    this.high.textContent = this.format(this.scale[1]);
    this.low.textContent = this.format(this.scale[0]);
    this.from.textContent = `${ago(span)} ago`;
    this.#label(this.chosen ?? points.at(-1));
  }

  #path(of) {
    let path = "";
    let last = null;
    for (const point of this.points) {
      const value = of(point);
      if (value === null) { last = null; continue; }
      const joined = last !== null && point.at_s - last <= 3 * this.width;
      const [x, y] = [this.#x(point), this.#y(value)];
      // A lone point is drawn as a dot: a line of no length with round ends.
      path += joined ? `L${x} ${y}` : `M${x} ${y}h.01`;
      last = point.at_s;
    }
    return path;
  }

  #x(point) {
    return (1000 * (1 - (this.end - point.at_s - this.width / 2) / this.span)).toFixed(1);
  }

  #y(value) {
    const [low, high] = this.scale;
    return (HEIGHT * (1 - (Math.min(value, high) - low) / (high - low))).toFixed(2);
  }

  #line(y) {
    const line = this.svg.appendChild(document.createElementNS(NS, "line"));
    const ends = { x1: 0, x2: 1000, y1: y, y2: y };
    for (const [name, value] of Object.entries(ends)) line.setAttribute(name, value);
  }

  #point(event) {
    this.chosen = null;
    if (event !== null && this.points.length > 0) {
      const box = this.plot.getBoundingClientRect();
      const at = this.end - this.span * (1 - (event.clientX - box.left) / box.width);
      this.chosen = this.points.reduce((best, point) =>
        Math.abs(point.at_s - at) < Math.abs(best.at_s - at) ? point : best);
      this.cursor.style.left = `${this.#x(this.chosen) / 10}%`;
    }
    this.cursor.hidden = this.chosen === null;
    this.#label(this.chosen ?? this.points.at(-1));
  }

  #label(point) {
    this.series.forEach(({ name, of }, index) => {
      const value = point === undefined ? null : of(point);
      // A series without a value and with a name is one that this stream does not have.
      this.keys[index].hidden = value === null && name !== "";
      this.keys[index].textContent = `${name} ${value === null ? "–" : this.format(value)}`.trim();
    });
  }
}

function child(parent, tag, className = "") {
  const element = parent.appendChild(document.createElement(tag));
  element.className = className;
  return element;
}

function ago(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

function rounded(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return unit * [1, 1.5, 2, 3, 5, 7.5, 10].find((step) => value <= step * unit * 1.0001);
}
