// The distances between ticks that an axis of a chart chooses from.

const DECIMAL = [1, 2, 5];
export const WHOLE = Array.from({ length: 13 }, (_, power) => DECIMAL.map((one) => one * 10 ** power)).flat();
// Between the ticks of values of any size: uPlot's own end at 10^32.
export const STEPS = Array.from({ length: 340 }, (_, place) => [1, 2, 2.5, 5].map((one) => Number(`${one}e${place - 32}`))).flat();
export const TIMES = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000];
