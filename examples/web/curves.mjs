// Two lines over time on a canvas, with a mark wherever the condition changes.

const STYLE = { frozen: "#b4532a", adapted: "#1f6f8b", axis: "#d9dee6", mark: "#aab2bf" };
const LEFT = 34;

/**
 * @param canvas HTMLCanvasElement.
 * @param series { name: "frozen" | "adapted", values: numbers in [0, 1] } each.
 * @param marks Positions at which a new condition begins, with its name.
 */
export function drawCurves(canvas, series, marks) {
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  const length = Math.max(2, ...series.map(({ values }) => values.length));
  const x = (index) => LEFT + ((width - LEFT - 4) * index) / (length - 1);
  const y = (value) => 14 + (height - 22) * (1 - value);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  context.lineWidth = 1;
  for (const level of [0, 0.5, 1]) {
    line(context, STYLE.axis, [LEFT, y(level)], [width, y(level)]);
    context.fillStyle = "#5d6878";
    context.fillText(level.toFixed(1), 4, y(level) + 4);
  }
  for (const { index, name } of marks) {
    line(context, STYLE.mark, [x(index), 4], [x(index), height - 8]);
    context.fillText(name, x(index) + 3, 12);
  }
  context.lineWidth = 2;
  for (const { name, values } of series) {
    context.strokeStyle = STYLE[name];
    context.beginPath();
    values.forEach((value, index) => context.lineTo(x(index), y(value)));
    context.stroke();
  }
}

function line(context, style, from, to) {
  context.strokeStyle = style;
  context.beginPath();
  context.moveTo(...from);
  context.lineTo(...to);
  context.stroke();
}
