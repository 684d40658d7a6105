// Lines of a chart made smooth, or fit for a logarithmic axis. Pure.

/** What a smoothing may be, as parts of the axis. */
export const SMOOTHINGS = [0, 0.01, 0.02, 0.05, 0.1, 0.2];

/**
 * A line whose middle is the mean over the values around each, within `share` of an axis of this `length`. Near its
 * ends it is over fewer, as many before as after, so that it neither lags nor flattens. Its values are drawn behind it.
 */
export function smooth(line, share, length) {
  if (!(share > 0) || line.x.length < 3) return line;
  const { x, low, high } = line;
  const values = line.middle ?? low.map((value, index) => (value === null ? null : (value + high[index]) / 2));
  const [sums, counts] = [[0], [0]];
  values.forEach((value, index) => {
    sums.push(sums[index] + (value ?? 0));
    counts.push(counts[index] + (value === null ? 0 : 1));
  });
  const middle = x.map((at, index) => {
    if (values[index] === null) return null;
    const half = Math.min((share * length) / 2, at - x[0], x.at(-1) - at);
    const [from, to] = [first(x, (one) => one >= at - half), first(x, (one) => one > at + half)];
    return (sums[to] - sums[from]) / (counts[to] - counts[from]);
  });
  return { ...line, middle, isRaw: !line.middle || same(low, high) };
}

function same(one, other) {
  return one.every((value, index) => value === other[index]);
}

/** The first place for which that holds, else the length; it holds for all places after it. */
function first(values, holds) {
  let [from, to] = [0, values.length];
  while (from < to) {
    const half = (from + to) >> 1;
    if (holds(values[half])) to = half;
    else from = half + 1;
  }
  return from;
}

/** Without what a logarithmic axis cannot show; and how many values that were. */
export function forLog(line) {
  const positive = (column) => column?.map((value) => (value > 0 ? value : null));
  const hidden = line.high.filter((value, index) => value !== null && !(line.low[index] > 0)).length;
  return { line: { ...line, low: positive(line.low), high: positive(line.high), middle: positive(line.middle) }, hidden };
}

/** The length of the axis that all these lines share. */
export function lengthOf(lines) {
  const ends = lines.filter(({ x }) => x.length).flatMap(({ x }) => [x[0], x.at(-1)]);
  return ends.length ? Math.max(...ends) - Math.min(...ends) : 0;
}
